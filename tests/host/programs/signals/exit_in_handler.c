/* A handler ends the process by _exit while a storm of calls runs. */
#include "../../observe.h"

static void handler(int number) { _exit(12); }

static void *thread(void *unused) {
    gpu_thread();
    for (;;) gpu_pairs(100);
}

int main(void) {
    struct sigaction action = {.sa_handler = handler};
    struct itimerval once = {{0, 0}, {0, 30000}};
    gpu_begin();
    sigaction(SIGALRM, &action, 0);
    for (int i = 0; i < 2; i++) start_thread(thread, 0);
    setitimer(ITIMER_REAL, &once, 0);
    for (;;) gpu_pairs(100);
}
