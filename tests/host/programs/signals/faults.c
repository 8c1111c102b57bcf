/* The program handles SIGSEGV and SIGBUS of its own memory, as garbage collectors do. */
#include "../../observe.h"

static char *page;
static volatile int faults;
static void handler(int number, siginfo_t *info, void *context) {
    faults++;
    CHECK(info->si_addr == page);
    mprotect(page, 4096, PROT_READ | PROT_WRITE);
}

int main(void) {
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO};
    sigaction(SIGSEGV, &action, 0);
    gpu_begin();
    page = mmap(0, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < 500; i++) {
        mprotect(page, 4096, PROT_NONE);
        gpu_pairs(2);
        page[0] = 1;
    }
    say("faults %d", faults);
    observe("end");
    return 0;
}
