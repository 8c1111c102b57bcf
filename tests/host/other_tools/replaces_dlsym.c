/* A second tool that is preloaded: it replaces `dlsym`, as tools do that limit the memory of a
   container on a shared GPU. Callers get its functions in place of the driver's. It counts calls,
   and refuses allocations above a limit. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

enum { LIMIT_BYTES = 1 << 20, OUT_OF_MEMORY = 2 };
static int (*driver_alloc)(unsigned long long *, size_t), (*driver_free)(unsigned long long);
static int calls;

static int limited_alloc(unsigned long long *address, size_t bytes) {
    __atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED);
    return bytes > LIMIT_BYTES ? OUT_OF_MEMORY : driver_alloc(address, bytes);
}

static int counted_free(unsigned long long address) {
    __atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED);
    return driver_free(address);
}

void *dlsym(void *handle, const char *name) {
    static void *(*real)(void *, const char *);
    if (!real) real = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
    if (!real) real = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    void *found = real(handle, name);
    if (!found) return found;
    if (!strcmp(name, "cuMemAlloc_v2")) return driver_alloc = found, limited_alloc;
    if (!strcmp(name, "cuMemFree_v2")) return driver_free = found, counted_free;
    return found;
}

__attribute__((destructor)) static void report(void) { fprintf(stderr, "the tool saw %d calls\n", calls); }
