/* Linked to libcuda, like vLLM's allocator: the loader binds the names; scope lookups find them. */
#include "driver.h"

int main(void) {
    void *context;
    CHECK(cuInit(0) == 0);
    CHECK(cuDevicePrimaryCtxRetain(&context, 0) == 0);
    CHECK(cuCtxSetCurrent(context) == 0);
    once(cuMemAlloc_v2, cuMemFree_v2, 2 * MIB);
    once((alloc_fn)dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"), (free_fn)dlsym(RTLD_DEFAULT, "cuMemFree_v2"), 4 * MIB);
    once((alloc_fn)dlsym(RTLD_NEXT, "cuMemAlloc_v2"), (free_fn)dlsym(RTLD_NEXT, "cuMemFree_v2"), 6 * MIB);
    return 0;
}
