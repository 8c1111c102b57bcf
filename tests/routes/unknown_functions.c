/* Functions with a recorded name but another signature: of a newer driver, of CUDA 2, and two that
   may free memory. */
#include "driver.h"

typedef int (*future_fn)(uint64_t, size_t, dptr *);

int main(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *found = 0;
    CHECK(library);
    start(library);
    get2_fn get = (get2_fn)dlsym(library, "cuGetProcAddress_v2");
    dptr pointer = 0;
    /* Its arguments have another order: recording it as the _v2 would break the call. */
    CHECK(get("cuMemAlloc", &found, 99000, 0, 0) == 0);
    CHECK(((future_fn)found)(0, 2 * MIB, &pointer) == 0 && pointer);
    CHECK(((future_fn)dlsym(library, "cuMemAlloc_v3"))(0, 2 * MIB, &pointer) == 0);
    uint32_t small;
    CHECK(((int (*)(uint32_t *, uint32_t))dlsym(library, "cuMemAlloc"))(&small, 512) == 801);
    CHECK(get("cuMemAlloc", &found, 2000, 0, 0) == 0);
    CHECK(((int (*)(uint32_t *, uint32_t))found)(&small, 512) == 801);
    CHECK(((int (*)(int, void *))dlsym(library, "cuCheckpointProcessCheckpoint"))(1, 0) == 801);
    CHECK(((int (*)(uint32_t))dlsym(library, "cuLogicalEndpointDestroy"))(1) == 801);
    CHECK(get("cuLogicalEndpointDestroy", &found, 13030, 0, 0) == 0);
    CHECK(((int (*)(uint32_t))found)(1) == 801);
    once((alloc_fn)dlsym(library, "cuMemAlloc_v2"), (free_fn)dlsym(library, "cuMemFree_v2"), 4 * MIB);
    return 0;
}
