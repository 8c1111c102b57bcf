/* The address space has no room for the rings at the first call: recording is given up.

   says: .
   trace: none */
#include "../../observe.h"

int main(void) {
    long pages = 0;
    CHECK(cuInit(0) == 0);
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file && fscanf(file, "%ld", &pages) == 1);
    fclose(file);
    set_limit(RLIMIT_AS, pages * 4096 + (256 << 10));
    gpu_begin();
    gpu_pairs(20000);
    say("done");
    return 0;
}
