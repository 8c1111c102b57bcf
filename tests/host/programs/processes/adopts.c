/* A subreaper adopts orphans and waits for any child: it sees its own children only. */
#include "../../observe.h"

int main(void) {
    CHECK(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0);
    gpu_begin();
    gpu_pairs(1000);
    for (int i = 0; i < 10; i++) {
        pid_t child = fork();
        if (child == 0) {
            if (fork() == 0) {
                usleep(5000);
                _exit(2);
            }
            _exit(1);
        }
    }
    int status, ended[3] = {0};
    while (wait(&status) > 0) ended[WEXITSTATUS(status) % 3]++;
    say("children %d, adopted %d, then %s", ended[1], ended[2], strerror(errno));
    gpu_pairs(1000);
    observe("end");
    return 0;
}
