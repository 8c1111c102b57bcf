/* Changes its session, group, name, priority and score while it records. */
#include "../../observe.h"

int main(void) {
    gpu_begin();
    gpu_pairs(500);
    pid_t child = fork();
    if (child == 0) {
        setsid();
        observe("new-session");
        _exit(0);
    }
    wait_for(child, "the child");
    prctl(PR_SET_NAME, "renamed");
    CHECK(setpriority(PRIO_PROCESS, 0, 5) == 0);
    umask(027);
    gpu_pairs(500);
    observe("end");
    return 0;
}
