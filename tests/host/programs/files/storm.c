/* Writes a trace of some megabytes to file systems of several kinds.

   needs: root
   place: tmpfs, overlay, fuse, fuse-overlay, ext4 */
#include "../../observe.h"

int main(void) {
    gpu_begin();
    for (int i = 0; i < 10; i++) {
        gpu_pairs(30000);
        usleep(5000);
    }
    observe("end");
    return 0;
}
