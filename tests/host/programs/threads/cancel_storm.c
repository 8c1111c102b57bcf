/* Threads are cancelled at any point while others fill the rings, so that some wait for room. */
#include "../../observe.h"

static int cleaned;
static void cleanup(void *unused) { __atomic_add_fetch(&cleaned, 1, __ATOMIC_RELAXED); }

static void *thread(void *unused) {
    gpu_thread();
    pthread_cleanup_push(cleanup, 0);
    for (;;) {
        gpu_pairs(20);
        pthread_testcancel();
    }
    pthread_cleanup_pop(0);
    return 0;
}

int main(void) {
    int cancelled = 0;
    gpu_begin();
    for (int round = 0; round < 40; round++) {
        pthread_t threads[4];
        for (int i = 0; i < 4; i++) threads[i] = start_thread(thread, 0);
        usleep(round * 300);
        for (int i = 0; i < 4; i++) pthread_cancel(threads[i]);
        for (int i = 0; i < 4; i++) {
            void *result;
            pthread_join(threads[i], &result);
            cancelled += result == PTHREAD_CANCELED;
        }
    }
    say("cancelled %d, cleanup handlers %d", cancelled, cleaned);
    observe("end");
    return 0;
}
