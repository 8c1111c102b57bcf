/* Allocates, frees and returns from main. */
#include "../../observe.h"

int main(void) {
    observe("start");
    gpu_begin();
    observe("driver");
    gpu_pairs(1);
    observe("first-call");
    gpu_pairs(5000);
    observe("end");
    return 3;
}
