/* The subset of the driver API that these programs use, and their error exit. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long long dptr;
extern int cuInit(unsigned);
extern int cuDevicePrimaryCtxRetain(void **, int);
extern int cuCtxSetCurrent(void *);
extern int cuMemAlloc_v2(dptr *, size_t);
extern int cuMemFree_v2(dptr);
extern int cuGetProcAddress_v2(const char *, void **, int, uint64_t, int *);

typedef int (*init_fn)(unsigned);
typedef int (*retain_fn)(void **, int);
typedef int (*current_fn)(void *);
typedef int (*alloc_fn)(dptr *, size_t);
typedef int (*free_fn)(dptr);
typedef int (*get1_fn)(const char *, void **, int, uint64_t);
typedef int (*get2_fn)(const char *, void **, int, uint64_t, int *);

#define CHECK(what) do { if (!(what)) { fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #what); exit(1); } } while (0)
#define MIB ((size_t)1 << 20)

/* Makes a context current for the thread, by functions of `library` (none of them is recorded). */
static inline void start(void *library) {
    void *context;
    CHECK(((init_fn)dlsym(library, "cuInit"))(0) == 0);
    CHECK(((retain_fn)dlsym(library, "cuDevicePrimaryCtxRetain"))(&context, 0) == 0);
    CHECK(((current_fn)dlsym(library, "cuCtxSetCurrent"))(context) == 0);
}

static inline void once(alloc_fn alloc, free_fn release, size_t size) {
    dptr pointer = 0;
    CHECK(alloc(&pointer, size) == 0 && pointer);
    CHECK(release(pointer) == 0);
}
