/* Starts as root, records, and gives up all rights for good; every thread changes its user.

   needs: root
   place: sticky
   says: recording stopped: .*permission denied
   trace: partial */
#include "../../observe.h"
#include <grp.h>

static void *thread(void *unused) {
    gpu_thread();
    gpu_pairs(500);
    say("thread runs as %d", geteuid());
    return 0;
}

int main(void) {
    gpu_begin();
    gpu_pairs(1000);
    CHECK(setgroups(0, 0) == 0 && setgid(65534) == 0 && setuid(65534) == 0);
    say("back to root: %d", setuid(0));
    gpu_pairs(1000);
    pthread_join(start_thread(thread, 0), 0);
    for (int number = 3; number < 1024; number++) close(number);
    gpu_pairs(5000);
    observe("end");
    return 0;
}
