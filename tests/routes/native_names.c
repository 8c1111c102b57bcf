/* Allocates from each kind of function: static, inlined, exported, in a C++ library. */
#include "driver.h"

extern int pool_grow(size_t bytes);
static dptr kept[8];
static int number;

static inline __attribute__((always_inline)) int take(size_t bytes) {
    int result = cuMemAlloc_v2(&kept[number], bytes);
    number++;
    return result;
}

static __attribute__((noinline)) int grow_static(size_t bytes) {
    int result = take(bytes);
    return result + (number < 0);
}

__attribute__((noinline)) int grow_exported(size_t bytes) {
    int result = grow_static(bytes);
    result += take(2 * bytes);
    return result;
}

int main(void) {
    void *context;
    CHECK(cuInit(0) == 0);
    CHECK(cuDevicePrimaryCtxRetain(&context, 0) == 0);
    CHECK(cuCtxSetCurrent(context) == 0);
    CHECK(grow_exported(2 * MIB) == 0);
    CHECK(pool_grow(8 * MIB) == 0);
    return 0;
}
