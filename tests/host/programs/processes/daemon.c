/* Becomes a daemon by a double fork; the daemon closes what it inherited, and records.

   output: unordered
   env: GPUMEMTRACE_OUTPUT=$PLACE/run.trace */
#include "../../observe.h"

int main(void) {
    pid_t child = fork();
    if (child) {
        wait_for(child, "the middle process");
        return 0;
    }
    setsid();
    if (fork()) _exit(0);
    CHECK(chdir("/") == 0);
    umask(0);
    for (int number = 3; number < 1024; number++) close(number);
    gpu_begin();
    gpu_pairs(1000);
    observe("daemon");
    return 0;
}
