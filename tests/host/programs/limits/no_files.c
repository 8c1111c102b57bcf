/* No descriptor is left before the first call: recording is given up, the program runs.

   says: .
   trace: none */
#include "../../observe.h"

int main(void) {
    CHECK(cuInit(0) == 0);
    set_limit(RLIMIT_NOFILE, 3);
    gpu_begin();
    gpu_pairs(20000);
    observe("end");
    return 0;
}
