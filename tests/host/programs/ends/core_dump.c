/* Dies of SIGSEGV and leaves a core file of limited size, which also shows the library's memory.

   differs: file core */
#include "../../observe.h"

int main(void) {
    gpu_begin();
    gpu_pairs(1000);
    observe("end");
    set_limit(RLIMIT_CORE, 4096);
    *(volatile int *)8 = 1;
    return 0;
}
