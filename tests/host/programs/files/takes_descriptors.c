/* Puts its own file at every descriptor by dup2; nothing but its own lines gets into it. */
#include "../../observe.h"

int main(void) {
    gpu_begin();
    gpu_pairs(500);
    int file = open("own", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    for (int round = 0; round < 3; round++) {
        for (int number = 10; number < 1000; number++) CHECK(dup2(file, number) == number);
        gpu_pairs(20000);
        CHECK(write(700, "a line\n", 7) == 7);
    }
    usleep(300000);
    gpu_pairs(100);
    say("size %ld", (long)lseek(file, 0, SEEK_END));
    return 0;
}
