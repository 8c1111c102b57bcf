/* The only thread ends by the system call exit, with a status. Exit handlers do not run. */
#include "../../observe.h"

static void handler(void) { say("exit handler"); }

int main(void) {
    atexit(handler);
    gpu_begin();
    gpu_pairs(100);
    observe("end");
    syscall(SYS_exit, 5);
    say("not reached");
    return 0;
}
