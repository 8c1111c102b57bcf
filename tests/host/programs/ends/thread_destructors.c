/* Destructors of thread-specific data free GPU memory, in several rounds. */
#include "../../observe.h"

static pthread_key_t first, second;

static void free_first(void *kept) {
    gpu_free((dptr)(uintptr_t)kept);
    say("first destructor");
    pthread_setspecific(second, (void *)(uintptr_t)gpu_alloc(512));
}

static void free_second(void *kept) {
    gpu_free((dptr)(uintptr_t)kept);
    say("second destructor");
}

static void *thread(void *unused) {
    gpu_thread();
    pthread_setspecific(first, (void *)(uintptr_t)gpu_alloc(1024));
    return 0;
}

int main(void) {
    pthread_key_create(&first, free_first);
    pthread_key_create(&second, free_second);
    gpu_begin();
    for (int i = 0; i < 50; i++) pthread_join(start_thread(thread, 0), 0);
    observe("end");
    return 0;
}
