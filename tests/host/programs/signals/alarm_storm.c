/* An interval timer raises SIGALRM all the time; its handler makes GPU calls and keeps errno.

   trace: counted */
#include "../../observe.h"

static volatile int handled;
static void handler(int number) {
    int saved = errno;
    gpu_pairs(2);
    handled++;
    errno = saved;
}

int main(void) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    struct itimerval often = {{0, 500}, {0, 500}}, never = {{0, 0}, {0, 0}};
    gpu_begin();
    sigaction(SIGALRM, &action, 0);
    setitimer(ITIMER_REAL, &often, 0);
    while (handled < 300) gpu_pairs(50);
    observe("storm");
    setitimer(ITIMER_REAL, &never, 0);
    say("done");
    return 0;
}
