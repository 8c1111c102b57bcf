/* Linked to the forwarder and to libcuda: its calls go through both, traced or not. */
#include "driver.h"

extern int forwarded;

int main(void) {
    void *context, *library = dlopen("libcuda.so.1", RTLD_NOW);
    CHECK(cuInit(0) == 0);
    CHECK(cuDevicePrimaryCtxRetain(&context, 0) == 0);
    CHECK(cuCtxSetCurrent(context) == 0);
    once(cuMemAlloc_v2, cuMemFree_v2, 2 * MIB);
    CHECK(forwarded == 2);
    /* A lookup in libcuda itself bypasses the forwarder. */
    once((alloc_fn)dlsym(library, "cuMemAlloc_v2"), (free_fn)dlsym(library, "cuMemFree_v2"), 4 * MIB);
    CHECK(forwarded == 2);
    return 0;
}
