/* The address space is used up: the program's own requests fail as before, and it goes on. With one
   arena the recorder's thread has no memory of its own in reserve.

   env: MALLOC_ARENA_MAX=1
   says: out of host memory
   trace: partial */
#include "../../observe.h"

int main(void) {
    long pages = 0;
    gpu_begin();
    gpu_pairs(1);
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file && fscanf(file, "%ld", &pages) == 1);
    fclose(file);
    set_limit(RLIMIT_AS, pages * 4096);
    say("large request: %s", malloc(64 << 20) ? "works" : "fails");
    gpu_pairs(50000);
    say("large request: %s", malloc(64 << 20) ? "works" : "fails");
    return 0;
}
