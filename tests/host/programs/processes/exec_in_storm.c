/* Replaces itself by exec while threads allocate; the new program has the same pid and records. */
#include "../../observe.h"

static void *thread(void *unused) {
    gpu_thread();
    for (;;) gpu_pairs(100);
}

int main(int argc, char **argv) {
    gpu_begin();
    gpu_pairs(500);
    observe(argc > 1 ? "second" : "first");
    if (argc > 2) return 8;
    for (int i = 0; i < 2; i++) start_thread(thread, 0);
    usleep(20000);
    execl("/proc/self/exe", argv[0], "again", argc > 1 ? "last" : (char *)0, (char *)0);
    return 1;
}
