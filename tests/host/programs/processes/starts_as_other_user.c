/* Is another user before the first GPU call, in a folder that this user may write.

   needs: root
   place: sticky */
#include "../../observe.h"

int main(void) {
    CHECK(setgid(65534) == 0 && setuid(65534) == 0);
    CHECK(prctl(PR_SET_DUMPABLE, 0) == 0);
    gpu_begin();
    gpu_pairs(5000);
    observe("end");
    return 0;
}
