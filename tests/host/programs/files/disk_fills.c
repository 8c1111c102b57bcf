/* The disk or the quota is used up while it records; the program's own files are whole.

   needs: root
   place: small-disk, quota
   says: .
   trace: partial */
#include "../../observe.h"

int main(void) {
    gpu_begin();
    gpu_pairs(1000);
    int file = open("own", O_WRONLY | O_CREAT, 0600);
    CHECK(write(file, "a line\n", 7) == 7 && fsync(file) == 0);
    unsigned random = 1;
    dptr kept[512] = {0};
    for (int i = 0; i < 400000; i++) {
        random = random * 1664525 + 1013904223;
        dptr *slot = &kept[random >> 23];
        if (*slot) gpu_free(*slot);
        *slot = gpu_alloc(512 + (random >> 8 & 0xfffff));
    }
    say("done");
    return 0;
}
