/* The first GPU call of the process is made by a signal handler. */
#include "../../observe.h"

static void handler(int number) {
    gpu_pairs(10);
    say("handler done");
}

int main(void) {
    struct sigaction action = {.sa_handler = handler};
    sigaction(SIGUSR1, &action, 0);
    gpu_begin();
    raise(SIGUSR1);
    gpu_pairs(100);
    observe("end");
    return 0;
}
