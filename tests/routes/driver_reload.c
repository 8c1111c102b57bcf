/* Unloads the driver and loads it again, as programs do that only probe for it. */
#include "driver.h"

int main(void) {
    for (int round = 0; round < 3; round++) {
        void *library = dlopen("libcuda.so.1", RTLD_NOW);
        CHECK(library);
        start(library);
        once((alloc_fn)dlsym(library, "cuMemAlloc_v2"), (free_fn)dlsym(library, "cuMemFree_v2"), 2 * MIB);
        CHECK(dlclose(library) == 0);
    }
    return 0;
}
