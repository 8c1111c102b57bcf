/* Changes its root to an empty folder without /proc while it records.

   needs: root */
#include "../../observe.h"

int main(void) {
    gpu_begin();
    gpu_pairs(500);
    CHECK(mkdir("jail", 0755) == 0 && chroot("jail") == 0 && chdir("/") == 0);
    gpu_pairs(20000);
    observe("jail");
    return 0;
}
