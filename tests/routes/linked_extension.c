/* A module linked to libcuda and opened with RTLD_LOCAL: libcuda is in no other module's scope. */
#include "driver.h"

void use(size_t size) {
    void *context;
    CHECK(cuInit(0) == 0);
    CHECK(cuDevicePrimaryCtxRetain(&context, 0) == 0);
    CHECK(cuCtxSetCurrent(context) == 0);
    once(cuMemAlloc_v2, cuMemFree_v2, size);
}
