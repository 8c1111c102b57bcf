/* SIGPROF as profilers use it, in several threads, with GPU calls from the handler.

   trace: counted */
#include "../../observe.h"

static volatile int handled;
static __thread int ready;
static void handler(int number) {
    int saved = errno;
    if (ready) gpu_pairs(1);
    __atomic_add_fetch(&handled, 1, __ATOMIC_RELAXED);
    errno = saved;
}

static void *thread(void *unused) {
    gpu_thread();
    ready = 1;
    while (__atomic_load_n(&handled, __ATOMIC_RELAXED) < 100) gpu_pairs(50);
    return 0;
}

int main(void) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    struct itimerval often = {{0, 1000}, {0, 1000}}, never = {{0, 0}, {0, 0}};
    pthread_t threads[3];
    gpu_begin();
    sigaction(SIGPROF, &action, 0);
    setitimer(ITIMER_PROF, &often, 0);
    for (int i = 0; i < 3; i++) threads[i] = start_thread(thread, 0);
    for (int i = 0; i < 3; i++) pthread_join(threads[i], 0);
    setitimer(ITIMER_PROF, &never, 0);
    observe("end");
    return 0;
}
