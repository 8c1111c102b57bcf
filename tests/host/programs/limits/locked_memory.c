/* All memory is locked, now and in future, with a small limit for others.

   needs: root */
#include "../../observe.h"

int main(void) {
    CHECK(mlockall(MCL_CURRENT | MCL_FUTURE) == 0);
    gpu_begin();
    gpu_pairs(5000);
    CHECK(munlockall() == 0);
    observe("end");
    return 0;
}
