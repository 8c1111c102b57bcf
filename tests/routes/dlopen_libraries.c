/* Opens each library given, with RTLD_LOCAL or (after -d) RTLD_DEEPBIND, and makes it allocate. */
#include "driver.h"
#include <unistd.h>

int main(int count, char **names) {
    int flags = RTLD_NOW | RTLD_LOCAL;
    for (int at = 1; at < count; at++) {
        if (!strcmp(names[at], "-d")) {
            flags |= RTLD_DEEPBIND;
            continue;
        }
        void *library = dlopen(names[at], flags);
        if (!library) fprintf(stderr, "%s\n", dlerror());
        CHECK(library);
        ((void (*)(size_t))dlsym(library, "use"))(2 * MIB * (size_t)at);
    }
    return 0;
}
