/* dlopen and dlsym, as in Triton and PyTorch's driver interface. */
#include "driver.h"

int main(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    CHECK(library);
    start(library);
    once((alloc_fn)dlsym(library, "cuMemAlloc_v2"), (free_fn)dlsym(library, "cuMemFree_v2"), 2 * MIB);
    return 0;
}
