/* A library linked to libcuda, and to the program. Its destructor allocates and frees. */
#include "driver.h"

__attribute__((destructor)) static void end(void) { once(cuMemAlloc_v2, cuMemFree_v2, 8 * MIB); }
