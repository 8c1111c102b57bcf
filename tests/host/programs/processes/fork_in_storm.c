/* Forks while other threads allocate; children end in all ways. */
#include "../../observe.h"

static volatile int goes_on = 1;
static void *thread(void *unused) {
    gpu_thread();
    while (goes_on) gpu_pairs(100);
    return 0;
}

int main(void) {
    pthread_t threads[3];
    gpu_begin();
    for (int i = 0; i < 3; i++) threads[i] = start_thread(thread, 0);
    for (int i = 0; i < 30; i++) {
        pid_t child = fork();
        if (child == 0) {
            if (i % 3 == 0) _exit(i);
            if (i % 3 == 1) exit(i);
            raise(SIGKILL);
        }
        wait_for(child, "a child");
    }
    goes_on = 0;
    for (int i = 0; i < 3; i++) pthread_join(threads[i], 0);
    observe("end");
    return 0;
}
