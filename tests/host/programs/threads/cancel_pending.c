/* A cancellation is pending before the first allocation of the process and of each thread. Calls
   that are no cancellation points finish; the next cancellation point ends the thread. */
#include "../../observe.h"

static int cleaned;
static void cleanup(void *unused) { cleaned++; }

static void *thread(void *unused) {
    int old;
    pthread_cleanup_push(cleanup, 0);
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old);
    pthread_cancel(pthread_self());
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &old);
    gpu_begin();
    gpu_pairs(2000);
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old);
    say("calls done, cancellation was %s", old == PTHREAD_CANCEL_ENABLE ? "enabled" : "disabled");
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &old);
    pthread_testcancel();
    pthread_cleanup_pop(0);
    return 0;
}

int main(void) {
    CHECK(cuInit(0) == 0);
    for (int i = 0; i < 5; i++) {
        void *result;
        pthread_join(start_thread(thread, 0), &result);
        say("thread %d %s, cleanup handlers %d", i, result == PTHREAD_CANCELED ? "cancelled" : "ended", cleaned);
    }
    observe("end");
    return 0;
}
