/* Runs in a namespace without /proc and /dev.

   needs: root */
#include "../../observe.h"

int main(void) {
    own_mounts();
    CHECK(umount2("/proc", MNT_DETACH) == 0 && mount("none", "/dev", "tmpfs", 0, 0) == 0);
    gpu_begin();
    gpu_pairs(20000);
    observe("end");
    return 0;
}
