/* Opens the driver and asks for its functions, as CUDA's runtime does. */
#include <dlfcn.h>
#include <stdio.h>

int main(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW), *context;
    int (*init)(unsigned) = dlsym(driver, "cuInit");
    int (*retain)(void **, int) = dlsym(driver, "cuDevicePrimaryCtxRetain");
    int (*set)(void *) = dlsym(driver, "cuCtxSetCurrent");
    int (*alloc)(unsigned long long *, size_t) = dlsym(driver, "cuMemAlloc_v2");
    int (*release)(unsigned long long) = dlsym(driver, "cuMemFree_v2");
    if (init(0) || retain(&context, 0) || set(context)) return 1;
    for (int pair = 0; pair < 100; pair++) {
        unsigned long long address;
        if (alloc(&address, 512) || release(address)) return 2;
    }
    unsigned long long address;
    printf("a large allocation: %d\n", alloc(&address, 1 << 21));
    return 0;
}
