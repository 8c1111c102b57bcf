/* Changes its working folder and removes the old one's rights while it records. */
#include "../../observe.h"

int main(void) {
    gpu_begin();
    gpu_pairs(500);
    CHECK(mkdir("inner", 0700) == 0 && chdir("inner") == 0);
    for (int number = 3; number < 2048; number++) close(number);
    gpu_pairs(20000);
    observe("inner");
    CHECK(chdir("/") == 0);
    gpu_pairs(20000);
    observe("end");
    return 0;
}
