/* Allocates and frees, and dies by SIGKILL at an instruction of these two calls.

   usage: kill_at_step STEP      0: to the end. Prints the number of instructions. */
#include "../../routes/driver.h"
#include "single_step.h"
#include <unistd.h>

static volatile long steps, last;

static void count_step(int number) {
    if (++steps == last) kill(getpid(), SIGKILL);
}

int main(int argc, char **argv) {
    void *context;
    CHECK(argc == 2 && signal(SIGTRAP, count_step) != SIG_ERR);
    last = atol(argv[1]);
    CHECK(cuInit(0) == 0 && cuDevicePrimaryCtxRetain(&context, 0) == 0 && cuCtxSetCurrent(context) == 0);
    /* The first calls from here start the recording, and the walk of the stack finds its libraries. */
    for (int i = 0; i < 5; i++) {
        if (i == 4) begin_steps();
        once(cuMemAlloc_v2, cuMemFree_v2, 512);
    }
    end_steps();
    printf("%ld\n", steps);
    return 0;
}
