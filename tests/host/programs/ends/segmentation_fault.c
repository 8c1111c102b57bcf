/* Dies of SIGSEGV; the limit of core files is zero. */
#include "../../observe.h"

int main(void) {
    struct rlimit none = {0, 0};
    CHECK(setrlimit(RLIMIT_CORE, &none) == 0);
    gpu_begin();
    gpu_pairs(1000);
    observe("end");
    *(volatile int *)8 = 1;
    return 0;
}
