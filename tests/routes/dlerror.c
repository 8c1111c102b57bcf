/* dlerror around lookups behaves as untraced; names of any length are accepted. */
#include "driver.h"
#include <sys/mman.h>
#include <unistd.h>

int main(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *found = 0;
    CHECK(library);
    dlerror();
    CHECK(dlsym(library, "cuMemAlloc_v2") && !dlerror());
    CHECK(dlsym(library, "cuGetProcAddress_v2") && !dlerror());
    CHECK(!dlsym(library, "cuNoSuchFunction"));
    const char *error = dlerror();
    CHECK(error && strstr(error, "cuNoSuchFunction"));
    CHECK(!dlerror());
    /* A successful lookup after a failed one clears the error. */
    CHECK(!dlsym(library, "cuMemAlloc_v9") && dlsym(library, "cuMemFree_v2") && !dlerror());
    get2_fn get = (get2_fn)dlsym(library, "cuGetProcAddress_v2");
    CHECK(get("cuMemAlloc", &found, 12000, 0, 0) == 0 && found && !dlerror());

    long page = sysconf(_SC_PAGESIZE);
    char *pages = mmap(0, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(pages != MAP_FAILED && mprotect(pages + page, page, PROT_NONE) == 0);
    const char *names[] = {"", "c", "cu", "x"};
    for (int at = 0; at < 4; at++) {
        char *name = pages + page - strlen(names[at]) - 1;
        strcpy(name, names[at]);
        CHECK(!dlsym(library, name));
        CHECK(dlerror());
    }
    start(library);
    once((alloc_fn)dlsym(library, "cuMemAlloc_v2"), (free_fn)dlsym(library, "cuMemFree_v2"), 2 * MIB);
    return 0;
}
