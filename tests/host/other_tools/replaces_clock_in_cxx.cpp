/* As replaces_clock.c with ONLY_CLOCK. C++ registers the destructor by a call of __cxa_atexit. */
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static volatile bool is_gone;

static struct Tool {
    ~Tool() { is_gone = true; }
} tool;

extern "C" int clock_gettime(clockid_t clock, struct timespec *time) {
    if (is_gone) abort();
    int result = syscall(SYS_clock_gettime, clock, time);
    time->tv_sec += 1000;
    return result;
}
