/* Handlers run on an alternate stack and make GPU calls; one handles the overflow of the stack. */
#include "../../observe.h"

static sigjmp_buf back;
static char stack[256 << 10];

static void handler(int number) {
    gpu_pairs(20);
    if (number == SIGSEGV) siglongjmp(back, 1);
}

#pragma GCC diagnostic ignored "-Wpragmas"
#pragma GCC diagnostic ignored "-Winfinite-recursion"
static int __attribute__((noinline)) overflow(int depth) {
    volatile char use[4096];
    use[depth % 4096] = 1;
    return overflow(depth + 1) + use[0];
}

int main(void) {
    stack_t alternate = {.ss_sp = stack, .ss_size = sizeof stack};
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_ONSTACK};
    CHECK(sigaltstack(&alternate, 0) == 0);
    sigaction(SIGUSR1, &action, 0);
    sigaction(SIGSEGV, &action, 0);
    gpu_begin();
    for (int i = 0; i < 100; i++) raise(SIGUSR1);
    set_limit(RLIMIT_STACK, 1 << 20);
    if (!sigsetjmp(back, 1)) overflow(0);
    say("overflow handled");
    gpu_pairs(1000);
    observe("end");
    return 0;
}
