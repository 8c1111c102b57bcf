/* Threads with the smallest stack allocate, also as the first of the process. */
#include "../../observe.h"

static void *thread(void *first) {
    if (first) gpu_begin(); else gpu_thread();
    dptr address;
    for (int i = 0; i < 200; i++) CHECK(cuMemAlloc_v2(&address, 512) == 0 && cuMemFree_v2(address) == 0);
    return 0;
}

int main(void) {
    pthread_attr_t small;
    pthread_attr_init(&small);
    /* Rust's and our thread-local data lie on the stack, too. */
    CHECK(pthread_attr_setstacksize(&small, 64 << 10) == 0);
    for (int i = 0; i < 20; i++) {
        pthread_t one;
        CHECK(pthread_create(&one, &small, thread, i == 0 ? "first" : 0) == 0);
        pthread_join(one, 0);
    }
    observe("end");
    return 0;
}
