/* Both versions of cuGetProcAddress, each also looked up through the other, like CUDA's runtime. */
#include "driver.h"

static void *by_first(get1_fn get, const char *name, int version) {
    void *found = 0;
    CHECK(get(name, &found, version, 0) == 0 && found);
    return found;
}

static void *by_second(get2_fn get, const char *name, int version) {
    void *found = 0;
    int status = -1;
    CHECK(get(name, &found, version, 0, &status) == 0 && status == 0 && found);
    return found;
}

int main(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *found = (void *)1;
    CHECK(library);
    start(library);
    get1_fn first = (get1_fn)dlsym(library, "cuGetProcAddress");
    get2_fn second = (get2_fn)dlsym(library, "cuGetProcAddress_v2");
    CHECK(second("", &found, 0, 0, 0) == 0 && !found); /* the runtime's probe */
    once((alloc_fn)by_first(first, "cuMemAlloc", 3020), (free_fn)by_first(first, "cuMemFree", 3020), 2 * MIB);
    once((alloc_fn)by_second(second, "cuMemAlloc", 12000), (free_fn)by_second(second, "cuMemFree", 12000), 4 * MIB);
    first = (get1_fn)by_second(second, "cuGetProcAddress", 11030);
    second = (get2_fn)by_first(first, "cuGetProcAddress", 12000);
    second = (get2_fn)by_second(second, "cuGetProcAddress", 12000);
    once((alloc_fn)by_second(second, "cuMemAlloc", 12000), (free_fn)by_second(second, "cuMemFree", 12000), 6 * MIB);
    once((alloc_fn)by_first(first, "cuMemAlloc", 11000), (free_fn)by_first(first, "cuMemFree", 11000), 8 * MIB);
    return 0;
}
