/* Is in an empty root without /proc before it first allocates.

   needs: root */
#include "../../observe.h"

int main(void) {
    CHECK(cuInit(0) == 0);
    CHECK(mkdir("jail", 0755) == 0 && chroot("jail") == 0 && chdir("/") == 0);
    gpu_begin();
    gpu_pairs(20000);
    observe("jail");
    return 0;
}
