/* A sandbox forbids the thread to read the processor's time stamp counter. Reading it, or a clock
   in the kernel's shared page, ends the process.

   trace: exact */
#include "../../observe.h"

int main(void) {
    gpu_begin();
    gpu_pairs(1000);
    /* Until now, the writer thread may have begun to use the counter. */
    usleep(100000);
    gpu_pairs(1000);
    CHECK(prctl(PR_SET_TSC, PR_TSC_SIGSEGV, 0, 0, 0) == 0);
    gpu_pairs(1000);
    /* The writer thread compares the clocks once a second. */
    usleep(1500000);
    gpu_pairs(1000);
    say("goes on");
    syscall(SYS_exit_group, 0);
}
