/* Two copies of the driver in one process: only the first is recorded; the other is counted. */
#include "driver.h"

int main(int count, char **paths) {
    CHECK(count == 3);
    for (int at = 1; at < 3; at++) {
        void *library = dlopen(paths[at], RTLD_NOW | RTLD_LOCAL);
        CHECK(library);
        start(library);
        once((alloc_fn)dlsym(library, "cuMemAlloc_v2"), (free_fn)dlsym(library, "cuMemFree_v2"), 2 * MIB * (size_t)at);
    }
    return 0;
}
