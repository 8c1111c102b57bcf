/* Linked to libcuda, as vLLM's allocator is: the loader binds the names. */
#include "driver.h"

int main(void) {
    void *context;
    CHECK(cuInit(0) == 0);
    CHECK(cuDevicePrimaryCtxRetain(&context, 0) == 0);
    CHECK(cuCtxSetCurrent(context) == 0);
    once(cuMemAlloc_v2, cuMemFree_v2, 2 * MIB);
    return 0;
}
