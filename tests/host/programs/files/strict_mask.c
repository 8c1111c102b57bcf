/* The mask of new files forbids everything, also to the owner. */
#include "../../observe.h"

int main(void) {
    umask(0777);
    gpu_begin();
    gpu_pairs(5000);
    for (int number = 3; number < 2048; number++) close(number);
    gpu_pairs(20000);
    observe("end");
    return 0;
}
