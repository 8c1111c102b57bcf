/* A driver that returns at once. Its instructions are part of the counts, so they are few. */
typedef unsigned long long u64;

int cuInit(unsigned flags) { return 0; }
int cuCtxGetDevice(int *device) { return *device = 0; }
int cuCtxGetCurrent(u64 *context) { return *context = 1, 0; }
int cuMemAlloc_v2(u64 *address, u64 size) { return *address = 0x7f0000000000, 0; }
int cuMemFree_v2(u64 address) { return 0; }
