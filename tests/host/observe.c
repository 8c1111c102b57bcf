/* The observer and the GPU calls for programs in Python; see observe.py. */
#include "observe.h"

void host_observe(const char *point) { observe(point); }
void host_begin(void) { gpu_begin(); }
void host_thread(void) { gpu_thread(); }
void host_pairs(int count) { gpu_pairs(count); }
dptr host_alloc(size_t bytes) { return gpu_alloc(bytes); }
void host_free(dptr address) { gpu_free(address); }
