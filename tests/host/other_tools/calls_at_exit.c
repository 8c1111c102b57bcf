/* Calls the driver in its destructor. */
#include <dlfcn.h>

__attribute__((destructor)) static void call_driver(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    int (*alloc)(unsigned long long *, unsigned long) = dlsym(driver, "cuMemAlloc_v2");
    unsigned long long address;
    alloc(&address, 512);
}
