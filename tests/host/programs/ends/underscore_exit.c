/* Ends by _exit: no exit handler and no destructor runs. */
#include "../../observe.h"

static void at_exit(void) { say("exit handler"); }
static __attribute__((destructor)) void destructor(void) { say("destructor"); }

int main(void) {
    atexit(at_exit);
    gpu_begin();
    gpu_pairs(1000);
    observe("end");
    _exit(6);
}
