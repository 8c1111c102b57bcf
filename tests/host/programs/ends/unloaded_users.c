/* Opens the driver by dlopen, uses it, closes it and opens it again. The recorder keeps it loaded:
   it holds addresses of its functions.

   link: no
   differs: mapping .* libcuda */
#include "../../observe.h"

int main(void) {
    observe("start");
    for (int round = 0; round < 20; round++) {
        void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), *context;
        CHECK(driver);
        int (*init)(unsigned) = dlsym(driver, "cuInit");
        int (*retain)(void **, int) = dlsym(driver, "cuDevicePrimaryCtxRetain");
        int (*current)(void *) = dlsym(driver, "cuCtxSetCurrent");
        alloc_fn alloc = dlsym(driver, "cuMemAlloc_v2");
        free_fn release = dlsym(driver, "cuMemFree_v2");
        CHECK(init(0) == 0 && retain(&context, 0) == 0 && current(context) == 0);
        for (int i = 0; i < 100; i++) once(alloc, release, 4096);
        say("round %d", round);
        dlclose(driver);
    }
    observe("end");
    return 0;
}
