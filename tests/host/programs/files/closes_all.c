/* Closes all descriptors in the middle of the run, several times, and opens its own. */
#include "../../observe.h"

int main(void) {
    gpu_begin();
    for (int round = 0; round < 5; round++) {
        gpu_pairs(5000);
        for (int number = 3; number < 2048; number++) close(number);
        int file = open("own", O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
        say("own descriptor %d", file);
        gpu_pairs(5000);
        CHECK(write(file, "a line\n", 7) == 7);
    }
    observe("end");
    return 0;
}
