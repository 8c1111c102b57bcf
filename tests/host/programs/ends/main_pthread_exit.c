/* main leaves by pthread_exit; the last thread ends the process with exit code 0. */
#include "../../observe.h"

static void at_exit(void) { say("exit handler"); gpu_pairs(5); }

static void *works(void *unused) {
    gpu_thread();
    usleep(50000);
    gpu_pairs(1000);
    say("last thread ends");
    return 0;
}

int main(void) {
    atexit(at_exit);
    gpu_begin();
    gpu_pairs(10);
    observe("end");
    start_thread(works, 0);
    pthread_exit(0);
}
