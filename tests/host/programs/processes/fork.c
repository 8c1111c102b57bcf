/* Forks before the first GPU call and after it: children allocate, exit, call _exit and fork again.

   output: unordered */
#include "../../observe.h"

static void child_of(const char *name, int depth) {
    pid_t child = fork();
    if (child == 0) {
        gpu_begin();
        gpu_pairs(100);
        say("%s works", name);
        if (depth) child_of("a grandchild of a child that works", 0);
        exit(depth);
    }
    wait_for(child, name);
}

static void refused(int number) {
    pid_t child = fork();
    if (child == 0) {
        dptr address;
        observe("forked-child");
        say("a forked child is refused: %d", cuMemAlloc_v2(&address, 512));
        if (number % 2) _exit(number);
        exit(number);
    }
    wait_for(child, "a child");
}

int main(void) {
    child_of("an early child", 0);
    child_of("a second early child", 1);
    gpu_begin();
    gpu_pairs(1000);
    for (int i = 0; i < 6; i++) refused(i);
    gpu_pairs(1000);
    observe("end");
    return 0;
}
