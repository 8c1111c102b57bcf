/* Detached threads still allocate while main returns. */
#include "../../observe.h"

static int begun;
static void *thread(void *unused) {
    gpu_thread();
    gpu_pairs(10);
    __atomic_add_fetch(&begun, 1, __ATOMIC_RELAXED);
    for (;;) gpu_pairs(10);
}

int main(void) {
    gpu_begin();
    for (int i = 0; i < 4; i++) pthread_detach(start_thread(thread, 0));
    CHECK(wait_until(__atomic_load_n(&begun, __ATOMIC_RELAXED) == 4));
    say("main returns");
    return 0;
}
