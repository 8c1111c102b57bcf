/* The random host workload: blocks of random size from 500 call stacks, freed in random order.
 *
 * All recorders must see the same operations, so a seeded generator decides everything. Each
 * operation is counted in a mapped file after it is done, so a killed run has its true number too.
 *
 * A stack is 20 to 40 calls among 16 functions, plus one of 512 functions that allocate. Sizes are
 * 16 bytes to 16 KiB; 4,096 blocks live. gpumemtrace gets the blocks in the form of PyTorch's own.
 * Without a recorder that report is one empty call, which the untraced program makes too.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { FUNCTIONS = 16, SITES = 512, STACKS = 500, LIVE = 4096, MARKER_BYTES = 987643 };

/* The counts that outlive the process; measure.py has the same field order. */
struct tally {
    uint64_t pid, events, begin_ns, own_ns, peak_bytes;
};

struct block {
    void *address;
    size_t size;
};

struct run {
    struct block live[LIVE];
    uint64_t random, allocated;
    unsigned pairs_per_stack, site;
    volatile struct tally *tally;
    void (*report)(void *, int64_t, size_t, size_t, uint16_t);
};

static void silent(void *address, int64_t size, size_t allocated, size_t reserved, uint16_t device) {
    (void)address, (void)size, (void)allocated, (void)reserved, (void)device;
}

static uint64_t next(uint64_t *state) { /* splitmix64 */
    uint64_t z = (*state += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
}

static uint64_t clock_ns(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return time.tv_sec * 1000000000ull + time.tv_nsec;
}

enum { CUDA_0 = 1, RESERVED_BYTES = 1 << 30 };

/* Inlined into each site, so that the site calls malloc itself. */
static inline __attribute__((always_inline)) void pairs(struct run *run) {
    for (unsigned i = 0; i < run->pairs_per_stack; i++) {
        struct block *block = &run->live[next(&run->random) % LIVE];
        if (block->address) {
            run->allocated -= block->size;
            run->report(block->address, -(int64_t)block->size, run->allocated, RESERVED_BYTES, CUDA_0);
            free(block->address);
            run->tally->events++;
        }
        block->size = 16 + next(&run->random) % (16384 - 16 + 1);
        block->address = malloc(block->size);
        run->allocated += block->size;
        run->report(block->address, (int64_t)block->size, run->allocated, RESERVED_BYTES, CUDA_0);
        run->tally->events++;
    }
}

#define EIGHT(each, n) each(n##0) each(n##1) each(n##2) each(n##3) each(n##4) each(n##5) each(n##6) each(n##7)
#define SIXTY_FOUR(each, n) \
    EIGHT(each, n##0) EIGHT(each, n##1) EIGHT(each, n##2) EIGHT(each, n##3) \
    EIGHT(each, n##4) EIGHT(each, n##5) EIGHT(each, n##6) EIGHT(each, n##7)
#define ALL_SITES(each) \
    SIXTY_FOUR(each, 0) SIXTY_FOUR(each, 1) SIXTY_FOUR(each, 2) SIXTY_FOUR(each, 3) \
    SIXTY_FOUR(each, 4) SIXTY_FOUR(each, 5) SIXTY_FOUR(each, 6) SIXTY_FOUR(each, 7)

/* The empty asm prevents tail calls and the merging of equal functions. */
#define DEFINE_SITE(n) \
    static __attribute__((noinline)) void site_##n(struct run *run) { \
        pairs(run); \
        __asm__ volatile("# " #n ::: "memory"); \
    }
ALL_SITES(DEFINE_SITE)
#define NAME_SITE(n) site_##n,
static void (*const sites[SITES])(struct run *) = {ALL_SITES(NAME_SITE)};

static void (*const functions[FUNCTIONS])(struct run *, unsigned, uint64_t);
#define DEFINE_FUNCTION(n) \
    static __attribute__((noinline)) void function_##n(struct run *run, unsigned depth, uint64_t path) { \
        if (depth == 0) \
            sites[run->site](run); \
        else \
            functions[path % FUNCTIONS](run, depth - 1, path >> 4 | path << 60); \
        __asm__ volatile("# " #n ::: "memory"); \
    }
EIGHT(DEFINE_FUNCTION, 0)
EIGHT(DEFINE_FUNCTION, 1)
#define NAME_FUNCTION(n) function_##n,
static void (*const functions[FUNCTIONS])(struct run *, unsigned, uint64_t) = {
    EIGHT(NAME_FUNCTION, 0) EIGHT(NAME_FUNCTION, 1)};

/* Starts gpumemtrace's recording: the first allocation of the (simulated) driver. */
static int begin_recording(const char *path) {
    void *driver = dlopen(path, RTLD_NOW);
    if (!driver)
        return fprintf(stderr, "workload: %s\n", dlerror()), 1;
    int (*init)(unsigned) = dlsym(driver, "cuInit");
    int (*retain)(void **, int) = dlsym(driver, "cuDevicePrimaryCtxRetain");
    int (*set)(void *) = dlsym(driver, "cuCtxSetCurrent");
    int (*allocate)(uint64_t *, size_t) = dlsym(driver, "cuMemAlloc_v2");
    void *context;
    uint64_t address;
    return init(0) || retain(&context, 0) || set(context) || allocate(&address, RESERVED_BYTES);
}

static uint64_t peak_bytes(void) {
    char line[256];
    uint64_t kib = 0;
    FILE *status = fopen("/proc/self/status", "r");
    while (status && fgets(line, sizeof line, status))
        sscanf(line, "VmHWM: %lu", &kib);
    if (status)
        fclose(status);
    return kib << 10;
}

/* `driver` is empty unless gpumemtrace records. */
int run_workload(const char *tally_path, uint64_t pairs, unsigned pairs_per_stack, const char *driver) {
    static struct run run;
    int file = open(tally_path, O_RDWR);
    volatile struct tally *tally = mmap(NULL, sizeof *tally, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (tally == MAP_FAILED)
        return perror(tally_path), 1;
    if (*driver && begin_recording(driver))
        return 1;
    run.report = dlsym(RTLD_DEFAULT, "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE");
    if (!run.report)
        run.report = silent;
    run.random = 1;
    run.tally = tally;
    run.pairs_per_stack = pairs_per_stack;
    uint64_t paths[STACKS];
    for (unsigned i = 0; i < STACKS; i++)
        paths[i] = next(&run.random);
    /* Events that a recorder counts before this block do not belong to the workload. */
    void *volatile marker = malloc(MARKER_BYTES);
    (void)marker;
    tally->pid = getpid();
    tally->begin_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    uint64_t begin = clock_ns(CLOCK_THREAD_CPUTIME_ID);
    for (uint64_t done = 0; done < pairs; done += pairs_per_stack) {
        uint64_t stack = next(&run.random) % STACKS;
        run.site = stack;
        functions[stack % FUNCTIONS](&run, 20 + stack % 21, paths[stack]);
    }
    tally->own_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID) - begin;
    tally->peak_bytes = peak_bytes();
    return 0;
}

int main(int count, char **arguments) {
    if (count != 5)
        return fprintf(stderr, "usage: workload TALLY PAIRS PAIRS_PER_STACK DRIVER\n"), 2;
    return run_workload(arguments[1], strtoull(arguments[2], NULL, 10), atoi(arguments[3]), arguments[4]);
}
