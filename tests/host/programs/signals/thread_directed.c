/* Signals directed at threads interrupt their system calls and GPU calls; handlers of real-time
   signals allocate.

   trace: counted */
#include "../../observe.h"

static volatile int handled, goes_on = 1;
static void handler(int number, siginfo_t *info, void *context) {
    int saved = errno;
    gpu_pairs(1);
    __atomic_add_fetch(&handled, 1, __ATOMIC_RELAXED);
    errno = saved;
}

static void *thread(void *unused) {
    gpu_thread();
    while (goes_on) gpu_pairs(20);
    return 0;
}

int main(void) {
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | SA_NODEFER};
    pthread_t threads[4];
    sigaction(SIGRTMIN + 3, &action, 0);
    gpu_begin();
    for (int i = 0; i < 4; i++) threads[i] = start_thread(thread, 0);
    int sent = 0;
    for (int i = 0; i < 2000; i++) {
        sent += pthread_kill(threads[i % 4], SIGRTMIN + 3) == 0;
        if (i % 50 == 0) usleep(1000);
    }
    CHECK(wait_until(handled == sent));
    goes_on = 0;
    for (int i = 0; i < 4; i++) pthread_join(threads[i], 0);
    say("handled %d", handled);
    observe("end");
    return 0;
}
