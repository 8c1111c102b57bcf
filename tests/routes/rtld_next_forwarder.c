/* A library in front of libcuda that counts calls and forwards them with RTLD_NEXT. */
#include "driver.h"

int forwarded;

int cuMemAlloc_v2(dptr *pointer, size_t size) {
    forwarded++;
    return ((alloc_fn)dlsym(RTLD_NEXT, "cuMemAlloc_v2"))(pointer, size);
}

int cuMemFree_v2(dptr pointer) {
    forwarded++;
    return ((free_fn)dlsym(RTLD_NEXT, "cuMemFree_v2"))(pointer);
}
