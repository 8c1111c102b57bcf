/* Threads end by pthread_exit between calls; cleanup handlers and destructors run and allocate. */
#include "../../observe.h"

static pthread_key_t key;
static int ran;
static void cleanup(void *unused) {
    ran++;
    gpu_pairs(3);
}

static void *thread(void *unused) {
    gpu_thread();
    pthread_setspecific(key, &key);
    pthread_cleanup_push(cleanup, 0);
    gpu_pairs(50);
    pthread_exit((void *)5);
    pthread_cleanup_pop(0);
    return 0;
}

int main(void) {
    gpu_begin();
    pthread_key_create(&key, cleanup);
    for (int i = 0; i < 50; i++) {
        void *result;
        pthread_join(start_thread(thread, 0), &result);
        if (result != (void *)5) say("another result");
    }
    say("handlers %d", ran);
    observe("end");
    return 0;
}
