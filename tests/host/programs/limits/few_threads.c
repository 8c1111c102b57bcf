/* The user may start no thread: recording is given up, the program runs.

   needs: root
   place: sticky
   says: .
   trace: none */
#include "../../observe.h"

int main(void) {
    CHECK(cuInit(0) == 0);
    set_limit(RLIMIT_NPROC, 1);
    CHECK(setgid(65533) == 0 && setuid(65533) == 0);
    gpu_begin();
    gpu_pairs(20000);
    observe("end");
    return 0;
}
