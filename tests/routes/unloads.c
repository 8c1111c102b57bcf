/* Plugin A allocates and is unloaded. Plugin B is loaded at the same address, and allocates. */
#include "driver.h"

typedef void (*use_fn)(void);

int main(void) {
    void *context;
    CHECK(cuInit(0) == 0 && cuDevicePrimaryCtxRetain(&context, 0) == 0 && cuCtxSetCurrent(context) == 0);
    void *first = dlopen("./plugin_a.so", RTLD_NOW);
    CHECK(first);
    use_fn use = (use_fn)dlsym(first, "use"), before = use;
    use();
    CHECK(dlclose(first) == 0);
    void *second = dlopen("./plugin_b.so", RTLD_NOW);
    CHECK(second);
    use = (use_fn)dlsym(second, "use");
    printf("%s\n", use == before ? "same address" : "another address");
    use();
    return 0;
}
