/* A module that allocates SIZE MiB, five times. */
#include "driver.h"

void use(void) {
    dptr pointer;
    for (int call = 0; call < 5; call++) CHECK(cuMemAlloc_v2(&pointer, SIZE * MIB) == 0);
}
