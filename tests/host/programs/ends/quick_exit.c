/* Ends by quick_exit: its handlers run in order, exit handlers do not. */
#include "../../observe.h"

static void at_exit(void) { say("exit handler"); }
static void first(void) { say("first quick_exit handler"); gpu_pairs(10); }
static void second(void) { say("second quick_exit handler"); gpu_pairs(10); }

int main(void) {
    atexit(at_exit);
    at_quick_exit(first);
    at_quick_exit(second);
    gpu_begin();
    gpu_pairs(1000);
    observe("end");
    quick_exit(7);
}
