/* The program's allocator calls the driver, on whatever thread. */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void __libc_free(void *);
int cuInit(unsigned);
int cuDevicePrimaryCtxRetain(void **, int);
int cuCtxSetCurrent(void *);
int cuMemAlloc_v2(unsigned long long *, size_t);
int cuMemFree_v2(unsigned long long);

static int is_ready;
static __thread int is_inside;

static void call_driver(void) {
    int saved = errno;
    unsigned long long address;
    if (!is_ready || is_inside) return;
    is_inside = 1;
    if (cuMemAlloc_v2(&address, 512) == 0) cuMemFree_v2(address);
    is_inside = 0;
    errno = saved;
}

void *malloc(size_t bytes) { return call_driver(), __libc_malloc(bytes); }
void *calloc(size_t count, size_t bytes) { return call_driver(), __libc_calloc(count, bytes); }
void *realloc(void *old, size_t bytes) { return call_driver(), __libc_realloc(old, bytes); }
void free(void *old) { call_driver(), __libc_free(old); }

int main(void) {
    void *context;
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context)) return 1;
    is_ready = 1;
    for (int block = 0; block < 1000; block++) free(malloc(100));
    usleep(300000);
    for (int block = 0; block < 1000; block++) free(malloc(100));
    return 0;
}
