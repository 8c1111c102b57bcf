/* A library with its own CUDA runtime, which looks up everything at its first call. */
#include "driver.h"

void use(size_t size) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *alloc = 0, *release = 0;
    CHECK(library);
    start(library);
    get2_fn get = (get2_fn)dlsym(library, "cuGetProcAddress_v2");
    CHECK(get("cuMemAlloc", &alloc, 12000, 0, 0) == 0 && get("cuMemFree", &release, 12000, 0, 0) == 0);
    once((alloc_fn)alloc, (free_fn)release, size);
}
