/* An extension module linked to libcuda; its user opens it with RTLD_LOCAL, so libcuda is in nobody else's scope. */
#include "driver.h"

void use(size_t size) {
    void *context;
    CHECK(cuInit(0) == 0);
    CHECK(cuDevicePrimaryCtxRetain(&context, 0) == 0);
    CHECK(cuCtxSetCurrent(context) == 0);
    once(cuMemAlloc_v2, cuMemFree_v2, size);
}
