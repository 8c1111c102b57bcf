/* Threads come and go, several at a time, and hand blocks to each other. */
#include "../../observe.h"

static void *thread(void *block) {
    gpu_thread();
    gpu_pairs(500);
    gpu_free((dptr)(uintptr_t)block);
    return (void *)(uintptr_t)gpu_alloc(512);
}

int main(void) {
    gpu_begin();
    for (int round = 0; round < 10; round++) {
        pthread_t threads[8];
        for (int i = 0; i < 8; i++) threads[i] = start_thread(thread, (void *)(uintptr_t)gpu_alloc(1024));
        for (int i = 0; i < 8; i++) {
            void *block;
            pthread_join(threads[i], &block);
            gpu_free((dptr)(uintptr_t)block);
        }
    }
    observe("end");
    return 0;
}
