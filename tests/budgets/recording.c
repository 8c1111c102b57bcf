/* A program that always has the same events, for counting the recorder's instructions.
 *
 * It runs under the preloaded library and callgrind (scripts/checks/budgets). No CPython takes
 * part, because the counts would depend on its version: this program exports the symbols that the
 * recorder looks for, and frames with the layout of CPython 3.12. Each path below is a function of
 * its own. The cost of a path is the inclusive cost of the hook that this function calls.
 *
 * usage: recording DRIVER
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PATH __attribute__((noipa))
typedef unsigned long long u64;

/* Events of each path before counting begins, and while counting. */
enum { WARM = 600, COUNTED = 512 };

/* The clock advances by the same amount at each call. Else samples of the memory in use, which are
 * taken at intervals, would be counted in some runs only. The library reaches this function before
 * the C library's. */
int clock_gettime(clockid_t clock, struct timespec *time) {
    static u64 now = 1000000000;
    u64 ns = __atomic_add_fetch(&now, 100, __ATOMIC_RELAXED);
    time->tv_sec = ns / 1000000000;
    time->tv_nsec = ns % 1000000000;
    return 0;
}

/* CPython 3.12: the offsets are those of PYTHON_3_12 in recorder/src/stacks/python/layout.rs. */
enum { PYTHON_FRAMES = 34, FUNCTIONS = 12, CODE_UNITS = 4096, WORDS = 32 + CODE_UNITS / 4 };
const unsigned long Py_Version = 0x030c0000;
uintptr_t _PyRuntime[512], PyCode_Type[1], PyUnicode_Type[1], PyBytes_Type[1], PyFrame_Type[1];

static uintptr_t strings[FUNCTIONS][16], line_tables[FUNCTIONS][16], codes[FUNCTIONS][WORDS];
static uintptr_t frames[PYTHON_FRAMES + 1][13], cframe[1], thread_state[16];
static int has_thread_state = 1;

void *PyGILState_GetThisThreadState(void) { return has_thread_state ? thread_state : NULL; }

static void put_half(void *object, size_t offset, uint32_t value) { memcpy((char *)object + offset, &value, 4); }

static void make_interpreter(void) {
    for (int i = 0; i < FUNCTIONS; i++) {
        uintptr_t *string = strings[i], *table = line_tables[i], *code = codes[i];
        string[1] = (uintptr_t)PyUnicode_Type;
        string[2] = sprintf((char *)string + 40, "function_%d.py", i);
        string[3] = -1;
        put_half(string, 32, 1 << 2 | 1 << 5 | 1 << 6);
        table[1] = (uintptr_t)PyBytes_Type;
        table[2] = 16;
        code[1] = (uintptr_t)PyCode_Type;
        code[2] = CODE_UNITS;
        code[112 / 8] = code[120 / 8] = code[128 / 8] = (uintptr_t)string;
        code[136 / 8] = (uintptr_t)table;
        put_half(code, 68, 1);
        put_half(code, 92, 100 + i);
    }
    cframe[0] = (uintptr_t)frames[PYTHON_FRAMES];
    thread_state[56 / 8] = (uintptr_t)cframe;
}

/* Frame 1 is the outermost one. */
static void set_frame(int frame, int function, int code_unit) {
    frames[frame][0] = (uintptr_t)codes[function];
    frames[frame][1] = frame > 1 ? (uintptr_t)frames[frame - 1] : 0;
    frames[frame][7] = (uintptr_t)codes[function] + 192 + 2 * code_unit;
}

/* Which of two functions runs at a level is a bit of the path, and bits repeat after nine levels.
 * Two stacks usually differ from their outermost frames on. All of them fit into the recorder's
 * cache: an evicted node would make the counts depend on addresses. */
enum { STACKS = 64 };
static unsigned path_of(int event) { return event % STACKS * 167 % 512; }
static unsigned next_bits(unsigned path) { return path >> 1 | (path & 1) << 8; }

static void set_python_stack(unsigned path) {
    for (int frame = 1; frame <= PYTHON_FRAMES; frame++, path = next_bits(path))
        set_frame(frame, path & 1, 20);
}

enum { NATIVE_FRAMES = 31 };
PATH static void a(int depth, unsigned path, void (*leaf)(void));
PATH static void b(int depth, unsigned path, void (*leaf)(void)) {
    if (depth == 0) leaf();
    else (path & 1 ? b : a)(depth - 1, next_bits(path), leaf);
    __asm__ volatile("");
}
PATH static void a(int depth, unsigned path, void (*leaf)(void)) {
    if (depth == 0) leaf();
    else (path & 1 ? b : a)(depth - 1, next_bits(path), leaf);
    __asm__ volatile("");
}

static void (*report)(void *, int64_t, size_t, size_t, uint16_t);
static int (*mem_alloc)(u64 *, size_t), (*mem_free)(u64);
static const uint16_t CUDA_0 = 1;
static char *const BLOCK = (char *)0x7f0000001000;

#define EVENT(name, call) PATH static void name(void) { call; __asm__ volatile(""); }
EVENT(known_stack, report(BLOCK, 4096, 4096, 1 << 21, CUDA_0))
EVENT(known_stack_free, report(BLOCK, -4096, 0, 1 << 21, CUDA_0))
EVENT(other_stack, report(BLOCK, 4096, 4096, 1 << 21, CUDA_0))
EVENT(new_stack, report(BLOCK, 4096, 4096, 1 << 21, CUDA_0))
EVENT(without_python, report(BLOCK, 4096, 4096, 1 << 21, CUDA_0))
static u64 address;
EVENT(driver_alloc, mem_alloc(&address, 4096))
EVENT(driver_free, mem_free(address))

static int pairs;
static void known_leaf(void) {
    for (int i = 0; i < pairs; i++) {
        known_stack();
        known_stack_free();
    }
}
static void driver_leaf(void) {
    for (int i = 0; i < pairs; i++) {
        driver_alloc();
        driver_free();
    }
}

static void run(int count) {
    static int lines = 100;
    set_python_stack(0);
    pairs = count;
    a(NATIVE_FRAMES, 0, known_leaf);
    for (int i = 0; i < count; i++) {
        unsigned path = path_of(i);
        set_python_stack(path);
        a(NATIVE_FRAMES, path, other_stack);
    }
    set_python_stack(0);
    for (int i = 0; i < count; i++) {
        /* The innermost function is at a line where it has never been, or is a new one. */
        set_frame(PYTHON_FRAMES, 2 + lines / 2000, 50 + lines % 2000);
        lines++;
        new_stack();
    }
    set_python_stack(0);
    has_thread_state = 0;
    for (int i = 0; i < count; i++) without_python();
    has_thread_state = 1;
    /* After a report, the first 64 driver allocations search for PyTorch's allocator. */
    for (int i = 0; i < 100; i++) mem_alloc(&address, 4096);
    a(NATIVE_FRAMES, 0, driver_leaf);
}

/* scripts/checks/budgets sets all counts to zero when this is called. */
PATH void begin_counting(void) { __asm__ volatile(""); }

int main(int argc, char **argv) {
    void *driver = argc == 2 ? dlopen(argv[1], RTLD_NOW) : NULL;
    report = dlsym(RTLD_DEFAULT, "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE");
    if (!driver || !report) {
        fprintf(stderr, "recording: %s\n", driver ? "the library is not preloaded" : "no driver");
        return 1;
    }
    mem_alloc = dlsym(driver, "cuMemAlloc_v2");
    mem_free = dlsym(driver, "cuMemFree_v2");
    make_interpreter();
    set_python_stack(0);
    run(WARM);
    begin_counting();
    run(COUNTED);
    return 0;
}
