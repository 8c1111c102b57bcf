/* A preload that replaces the clock and some file calls, as libfaketime does. After its destructor,
   these crash. With ONLY_CLOCK it replaces clock_gettime alone. */
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int is_gone;

__attribute__((destructor)) static void leave(void) { is_gone = 1; }

static void check(void) {
    if (is_gone) abort();
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    check();
    int result = syscall(SYS_clock_gettime, clock, time);
    time->tv_sec += 1000;
    return result;
}

#ifndef ONLY_CLOCK
int fstat(int descriptor, struct stat *data) { return check(), syscall(SYS_fstat, descriptor, data); }
int usleep(useconds_t us) {
    struct timespec time = {us / 1000000, us % 1000000 * 1000};
    return check(), syscall(SYS_nanosleep, &time, 0);
}
ssize_t pwrite64(int descriptor, const void *bytes, size_t length, off64_t at) {
    return check(), syscall(SYS_pwrite64, descriptor, bytes, length, at);
}
#endif
