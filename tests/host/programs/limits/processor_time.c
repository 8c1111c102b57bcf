/* The limit of processor time ends the program by SIGXCPU. */
#include "../../observe.h"

static void handler(int number) {
    say("out of processor time");
    _exit(4);
}

int main(void) {
    struct sigaction action = {.sa_handler = handler};
    sigaction(SIGXCPU, &action, 0);
    gpu_begin();
    observe("start");
    set_limit(RLIMIT_CPU, 1);
    for (;;) {
        gpu_pairs(10);
        /* Mostly its own work. */
        for (volatile int i = 0; i < 300000; i++) continue;
    }
}
