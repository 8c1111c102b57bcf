/* A child asks for a signal at its parent's death. The thread that forked decides, so no thread of
   another library may take its place.

   output: unordered */
#include "../../observe.h"

int main(void) {
    int ready[2];
    CHECK(pipe(ready) == 0);
    pid_t parent = fork();
    if (parent == 0) {
        pid_t child = fork();
        if (child == 0) {
            CHECK(prctl(PR_SET_PDEATHSIG, SIGTERM) == 0);
            gpu_begin();
            gpu_pairs(500);
            observe("child");
            if (write(ready[1], "x", 1) != 1) return 1;
            for (;;) gpu_pairs(100);
        }
        char byte;
        if (read(ready[0], &byte, 1) != 1) return 1;
        _exit(3);
    }
    wait_for(parent, "the parent");
    return 0;
}
