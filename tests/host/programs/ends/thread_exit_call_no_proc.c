/* The only thread ends by the system call exit, in a namespace without /proc.

   Its status cannot be read there, so the process does not end with 0.

   needs: root */
#include "../../observe.h"

static void handler(void) { say("exit handler"); }

int main(void) {
    own_mounts();
    CHECK(umount2("/proc", MNT_DETACH) == 0);
    atexit(handler);
    gpu_begin();
    gpu_pairs(100);
    observe("end");
    syscall(SYS_exit, 1);
    say("not reached");
    return 0;
}
