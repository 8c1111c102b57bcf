/* The limit of descriptors leaves room for a few, from the start; ours are the highest.

   differs: descriptor 1[0-5] cloexec=1 */
#include "../../observe.h"

int main(void) {
    set_limit(RLIMIT_NOFILE, 16);
    gpu_begin();
    gpu_pairs(20000);
    int file = open("/dev/null", O_RDONLY);
    say("own descriptor %d", file);
    observe("end");
    return 0;
}
