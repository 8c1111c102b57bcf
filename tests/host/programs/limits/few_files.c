/* The limit of descriptors is reached after the first call; the program's open fails as before. */
#include "../../observe.h"

int main(void) {
    gpu_begin();
    gpu_pairs(500);
    set_limit(RLIMIT_NOFILE, 3);
    gpu_pairs(20000);
    say("open: %s", open("/dev/null", O_RDONLY) < 0 ? strerror(errno) : "works");
    observe("end");
    return 0;
}
