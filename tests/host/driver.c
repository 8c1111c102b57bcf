/* The driver of the host matrix: libcuda.so.1 as far as these programs call it.

   The simulated driver (crates/simgpu/) has a lock and a log file, so a program that jumps out of a
   call, cancels it, calls from a signal handler or closes all descriptors would fail untraced. This
   one has neither: calls are reentrant, may be unwound, and are counted in a file that is mapped
   and has no descriptor. The counts survive every end of the process and are the oracle for the
   trace.

   HOST_COUNTS=DIR      where DIR/PID.counts is written, see COUNTS in host_matrix/runs.py
   HOST_SLEEP_US=N      each allocation sleeps so long, in a cancellation point */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, NOT_INITIALIZED = 3 };
struct counts { uint64_t allocs_begun, allocs, frees_begun, frees; };

static struct counts without_file, *counts = &without_file;
static uint64_t next_address = 0x700000000000;
static long sleep_us;
static pid_t owner;
static __thread void *current;

/* A driver refuses the child of a process that used it. */
static int ready(void) { return owner && owner == getpid(); }
static void add(uint64_t *count) { __atomic_add_fetch(count, 1, __ATOMIC_RELAXED); }

int cuInit(unsigned flags) {
    char name[4096];
    const char *folder = getenv("HOST_COUNTS"), *sleep = getenv("HOST_SLEEP_US");
    int saved = errno, file;
    (void)flags;
    if (owner) return ready() ? SUCCESS : NOT_INITIALIZED;
    sleep_us = sleep ? atol(sleep) : 0;
    snprintf(name, sizeof name, "%s/%d.counts", folder ? folder : "/nonexistent", (int)getpid());
    file = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (file >= 0) {
        void *mapped = MAP_FAILED;
        if (ftruncate(file, sizeof *counts) == 0)
            mapped = mmap(0, sizeof *counts, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (mapped != MAP_FAILED) counts = mapped;
        close(file);
    }
    owner = getpid();
    errno = saved;
    return SUCCESS;
}

int cuDriverGetVersion(int *version) { *version = 12040; return SUCCESS; }
int cuDeviceGetCount(int *count) { *count = 1; return SUCCESS; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return ordinal ? INVALID_VALUE : SUCCESS; }
int cuDeviceGetName(char *name, int length, int device) { (void)device; snprintf(name, length, "host matrix"); return SUCCESS; }
int cuDeviceTotalMem_v2(size_t *bytes, int device) { (void)device; *bytes = (size_t)80 << 30; return SUCCESS; }
int cuMemGetInfo_v2(size_t *left, size_t *total) { *left = *total = (size_t)80 << 30; return ready() ? SUCCESS : NOT_INITIALIZED; }

int cuDevicePrimaryCtxRetain(void **context, int device) {
    if (!ready()) return NOT_INITIALIZED;
    *context = &owner;
    return device ? INVALID_VALUE : SUCCESS;
}
int cuCtxSetCurrent(void *context) { current = context; return ready() ? SUCCESS : NOT_INITIALIZED; }
int cuCtxGetCurrent(void **context) { *context = current; return ready() ? SUCCESS : NOT_INITIALIZED; }
int cuCtxGetDevice(int *device) { *device = 0; return ready() && current ? SUCCESS : 201; }

int cuMemAlloc_v2(unsigned long long *address, size_t bytes) {
    if (!ready()) return NOT_INITIALIZED;
    if (!bytes) return INVALID_VALUE;
    add(&counts->allocs_begun);
    if (sleep_us) {
        int saved = errno;
        struct timespec time = {sleep_us / 1000000, sleep_us % 1000000 * 1000};
        nanosleep(&time, 0);
        errno = saved;
    }
    *address = __atomic_fetch_add(&next_address, (bytes + 511) & ~(size_t)511, __ATOMIC_RELAXED);
    add(&counts->allocs);
    return SUCCESS;
}

int cuMemFree_v2(unsigned long long address) {
    if (!ready()) return NOT_INITIALIZED;
    if (!address) return INVALID_VALUE;
    add(&counts->frees_begun);
    add(&counts->frees);
    return SUCCESS;
}
