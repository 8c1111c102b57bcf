/* Calls abort while allocations are live. */
#include "../../observe.h"

int main(void) {
    gpu_begin();
    gpu_pairs(1000);
    gpu_alloc(512);
    observe("end");
    abort();
}
