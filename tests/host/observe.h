/* What a program of the host matrix includes: GPU calls, and observe(), which prints all state of
   the process that another library could change.

   Each program runs untraced and traced; the harness compares what both print. So a program prints
   no process ids, addresses or times. Lines of observe() begin with "@POINT ". Nothing here keeps a
   descriptor, installs a handler or starts a thread. */
#ifndef OBSERVE_H
#define OBSERVE_H
#include "observe_includes.h"

/* Prints one line with one write, without stdio and without allocating. */
static __attribute__((format(printf, 1, 2), unused)) void say(const char *format, ...) {
    char line[2048];
    int saved = errno;
    va_list values;
    va_start(values, format);
    int length = vsnprintf(line, sizeof line - 1, format, values);
    va_end(values);
    if (length > (int)sizeof line - 2) length = sizeof line - 2;
    line[length++] = '\n';
    if (write(1, line, length) != length) _exit(99);
    errno = saved;
}

#include "observe_state.h"

#define ERRNO_OF_PROGRAM 4711

static void *gpu_context;

/* Initialises the driver. Each thread that allocates calls gpu_thread(). */
static __attribute__((unused)) void gpu_begin(void) {
    CHECK(cuInit(0) == 0);
    CHECK(cuDevicePrimaryCtxRetain(&gpu_context, 0) == 0 && cuCtxSetCurrent(gpu_context) == 0);
}

static __attribute__((unused)) void gpu_thread(void) { CHECK(cuCtxSetCurrent(gpu_context) == 0); }

/* A call must leave errno, the floating-point state and the signal mask of the program alone. */
struct kept { unsigned mxcsr; unsigned short x87; sigset_t mask; };

static __attribute__((unused)) struct kept keep(void) {
    struct kept state;
    __asm__ volatile("stmxcsr %0" : "=m"(state.mxcsr));
    __asm__ volatile("fnstcw %0" : "=m"(state.x87));
    syscall(SYS_rt_sigprocmask, SIG_BLOCK, 0, &state.mask, 8);
    errno = ERRNO_OF_PROGRAM;
    return state;
}

static __attribute__((unused)) void check_kept(const struct kept *before, const char *call) {
    int error = errno;
    struct kept after = keep();
    if (error != ERRNO_OF_PROGRAM) say("errno after %s: %d", call, error);
    if (after.mxcsr != before->mxcsr) say("MXCSR after %s: %#x, not %#x", call, after.mxcsr, before->mxcsr);
    if (after.x87 != before->x87) say("x87 control after %s: %#x, not %#x", call, after.x87, before->x87);
    if (memcmp(&after.mask, &before->mask, 8)) say("another signal mask after %s", call);
}

static __attribute__((unused)) dptr gpu_alloc(size_t bytes) {
    dptr address = 0;
    struct kept before = keep();
    int result = cuMemAlloc_v2(&address, bytes);
    check_kept(&before, "cuMemAlloc");
    if (result) say("cuMemAlloc: %d", result);
    return address;
}

static __attribute__((unused)) void gpu_free(dptr address) {
    struct kept before = keep();
    int result = cuMemFree_v2(address);
    check_kept(&before, "cuMemFree");
    if (result) say("cuMemFree: %d", result);
}

static __attribute__((unused)) void gpu_pairs(int count) {
    for (int pair = 0; pair < count; pair++) gpu_free(gpu_alloc(512 * (1 + pair % 64)));
}

/* Waits for a child and prints how it ended. */
static __attribute__((unused)) void wait_for(pid_t child, const char *name) {
    int status = 0;
    pid_t got;
    do got = waitpid(child, &status, 0); while (got < 0 && errno == EINTR);
    if (got != child) say("%s: cannot wait: %s", name, strerror(errno));
    else if (WIFEXITED(status)) say("%s: exit code %d", name, WEXITSTATUS(status));
    else say("%s: signal %d", name, WTERMSIG(status));
}

static __attribute__((unused)) pthread_t start_thread(void *(*body)(void *), void *argument) {
    pthread_t thread;
    CHECK(pthread_create(&thread, 0, body, argument) == 0);
    return thread;
}

static __attribute__((unused)) void set_limit(int which, rlim_t value) {
    struct rlimit limit;
    CHECK(getrlimit(which, &limit) == 0);
    limit.rlim_cur = value;
    CHECK(setrlimit(which, &limit) == 0);
}

/* Gives the process mounts of its own, which end with it. */
static __attribute__((unused)) void own_mounts(void) {
    CHECK(unshare(CLONE_NEWNS) == 0 && mount("none", "/", 0, MS_REC | MS_PRIVATE, 0) == 0);
}

/* True once the condition holds; false after ten seconds. */
#define wait_until(condition) ({ \
    int left = 10000; \
    while (!(condition) && left-- > 0) usleep(1000); \
    left > 0; })
#endif
