/* main leaves by pthread_exit in a namespace without /proc; the process ends with its last thread.

   needs: root */
#include "../../observe.h"

static void *works(void *unused) {
    gpu_thread();
    usleep(50000);
    gpu_pairs(1000);
    say("last thread ends");
    return 0;
}

int main(void) {
    own_mounts();
    CHECK(umount2("/proc", MNT_DETACH) == 0);
    gpu_begin();
    gpu_pairs(10);
    observe("end");
    start_thread(works, 0);
    pthread_exit(0);
}
