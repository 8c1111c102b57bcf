/* A driver without locks, as libcuda.so.1: signal handlers may call it, and a call may unwind or be
   left by a jump.

   Each call appends a line to its log, a mapped file (SIMGPU_LOG), so nothing is lost in a kill. In
   place of its first line is the number of lines.
   A program can set `c_driver_call`, which runs inside an allocation of the size that it names, and
   `c_driver_query`, which runs when the driver is asked for free memory. */
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { LINE_BYTES = 64, MAX_LINES = 1 << 24 };
static char *lines;
static atomic_ulong next_addr = 1 << 21;

void (*volatile c_driver_call)(void);
volatile size_t c_driver_call_size;
void (*volatile c_driver_query)(void);

__attribute__((constructor)) static void open_log(void) {
    const char *path = getenv("SIMGPU_LOG");
    int file = path ? open(path, O_RDWR | O_CREAT, 0644) : -1;
    if (file < 0) return;
    size_t bytes = (size_t)LINE_BYTES * MAX_LINES;
    if (ftruncate(file, bytes) == 0) lines = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
}

static char *put_number(char *at, unsigned long value) {
    char digits[20];
    int count = 0;
    do digits[count++] = '0' + value % 10; while (value /= 10);
    while (count) *at++ = digits[--count];
    *at++ = ' ';
    return at;
}

/* One line: thread, kind ('a' or 'f'), address. Padded with spaces, so that a half-written one is
   recognised by its missing newline. */
static void put_line(char kind, unsigned long addr) {
    if (!lines) return;
    unsigned long number = 1 + atomic_fetch_add((atomic_ulong *)lines, 1);
    if (number >= MAX_LINES) abort();
    char *line = lines + number * LINE_BYTES, *at = line;
    at = put_number(at, syscall(SYS_gettid));
    *at++ = kind;
    *at++ = ' ';
    at = put_number(at, addr);
    while (at < line + LINE_BYTES - 1) *at++ = ' ';
    *at = '\n';
}

int cuInit(unsigned flags) { return flags ? 1 : 0; }
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
int cuDeviceGetCount(int *count) { *count = 1; return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDeviceGetPCIBusId(char *text, int size, int device) { return device || snprintf(text, size, "0000:01:00.0") >= size; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = (void *)(intptr_t)(16 + device); return 0; }
int cuCtxSetCurrent(void *context) { return context ? 0 : 1; }
int cuCtxGetCurrent(void **context) { *context = (void *)16; return 0; }
int cuCtxGetDevice(int *device) { *device = 0; return 0; }
int cuMemGetInfo_v2(size_t *available, size_t *total) {
    void (*query)(void) = c_driver_query;
    if (query) query();
    *available = 1ul << 34, *total = 1ul << 35;
    return 0;
}

int cuMemAlloc_v2(uint64_t *out, size_t size) {
    uint64_t addr = atomic_fetch_add(&next_addr, 1 << 21);
    put_line('a', addr);
    void (*call)(void) = c_driver_call;
    if (call && size == c_driver_call_size) call();
    *out = addr;
    return 0;
}

int cuMemFree_v2(uint64_t addr) {
    put_line('f', addr);
    return 0;
}
