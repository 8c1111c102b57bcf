/* malloc fails from before the first GPU call on.

   trace: none
   says: cannot record: the program has no memory left */
#include "../../observe.h"

int main(void) {
    CHECK(cuInit(0) == 0);
    set_limit(RLIMIT_AS, 256 << 20);
    for (size_t bytes = 64 << 20; bytes >= 16; bytes /= 2) while (malloc(bytes)) {}
    gpu_begin();
    gpu_pairs(1000);
    say("no memory");
    _exit(3);
}
