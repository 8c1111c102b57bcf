/* A thread calls exit while others allocate; exit handlers free GPU memory. */
#include "../../observe.h"

static dptr kept;
static void at_exit(void) {
    gpu_free(kept);
    say("exit handler");
}
static void *allocates(void *unused) {
    gpu_thread();
    for (;;) gpu_pairs(100);
}
static void *exits(void *unused) { exit(9); }

int main(void) {
    atexit(at_exit);
    gpu_begin();
    kept = gpu_alloc(4096);
    for (int i = 0; i < 3; i++) start_thread(allocates, 0);
    usleep(20000);
    say("threads run");
    start_thread(exits, 0);
    for (;;) pause();
}
