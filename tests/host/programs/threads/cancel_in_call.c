/* Threads are cancelled inside the driver's call, which is a cancellation point; all cleanup
   handlers run.

   env: HOST_SLEEP_US=2000 */
#include "../../observe.h"

static void cleanup(void *ran) { ++*(int *)ran; }

static void *thread(void *ran) {
    gpu_thread();
    pthread_cleanup_push(cleanup, ran);
    for (;;) gpu_pairs(1);
    pthread_cleanup_pop(0);
    return 0;
}

int main(void) {
    int ran = 0, cancelled = 0;
    gpu_begin();
    for (int i = 0; i < 60; i++) {
        void *result;
        pthread_t one = start_thread(thread, &ran);
        usleep(i * 137);
        pthread_cancel(one);
        pthread_join(one, &result);
        cancelled += result == PTHREAD_CANCELED;
    }
    say("cancelled %d, cleanup handlers %d", cancelled, ran);
    observe("end");
    return 0;
}
