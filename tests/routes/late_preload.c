/* Looks up the driver, then loads the recorder: nothing is recorded and nothing breaks. */
#include "driver.h"

int main(int count, char **names) {
    CHECK(count == 2);
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    CHECK(library);
    start(library);
    alloc_fn alloc = (alloc_fn)dlsym(library, "cuMemAlloc_v2");
    free_fn release = (free_fn)dlsym(library, "cuMemFree_v2");
    once(alloc, release, 2 * MIB);
    CHECK(dlopen(names[1], RTLD_NOW));
    once(alloc, release, 4 * MIB);
    return 0;
}
