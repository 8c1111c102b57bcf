/* The process is stopped for some seconds while it allocates, and goes on. */
#include "../../observe.h"

int main(void) {
    pid_t parent = getpid();
    gpu_begin();
    gpu_pairs(100);
    pid_t child = fork();
    if (child == 0) {
        for (int i = 0; i < 5; i++) {
            usleep(20000);
            kill(parent, SIGSTOP);
            usleep(i == 4 ? 1500000 : 50000);
            kill(parent, SIGCONT);
        }
        _exit(0);
    }
    siginfo_t ended = {0};
    while (!ended.si_pid) {
        gpu_pairs(100);
        waitid(P_PID, child, &ended, WEXITED | WNOHANG | WNOWAIT);
    }
    wait_for(child, "the other");
    observe("end");
    return 0;
}
