/* There is no room for the rings: a full disk, or a folder that cannot be written.

   needs: root
   place: full-disk, read-only
   says: .
   trace: partial */
#include "../../observe.h"

int main(void) {
    gpu_begin();
    gpu_pairs(5000);
    observe("end");
    return 0;
}
