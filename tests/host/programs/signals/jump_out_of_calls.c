/* A handler leaves GPU calls by siglongjmp, again and again; later calls are recorded all the same.

   trace: counted */
#include "../../observe.h"

static sigjmp_buf back;
static volatile sig_atomic_t jumps, inside;
static void handler(int number) {
    if (!inside) return;
    inside = 0;
    jumps++;
    siglongjmp(back, 1);
}

int main(void) {
    struct sigaction action = {.sa_handler = handler};
    struct itimerval often = {{0, 700}, {0, 700}}, never = {{0, 0}, {0, 0}};
    gpu_begin();
    sigaction(SIGALRM, &action, 0);
    setitimer(ITIMER_REAL, &often, 0);
    while (jumps < 200) {
        dptr address;
        if (sigsetjmp(back, 1)) continue;
        inside = 1;
        for (int i = 0; i < 1000; i++) CHECK(cuMemAlloc_v2(&address, 512) == 0 && cuMemFree_v2(address) == 0);
        inside = 0;
    }
    setitimer(ITIMER_REAL, &never, 0);
    gpu_pairs(20000);
    say("jumped %d times", (int)jumps);
    observe("end");
    return 0;
}
