/* Replaces the clock, as libfaketime does, by one that runs backwards.

   trace: counted */
#include "../../observe.h"

static long long begin_ns;

int clock_gettime(clockid_t clock, struct timespec *time) {
    struct timespec now;
    syscall(SYS_clock_gettime, clock, &now);
    long long ns = now.tv_sec * 1000000000LL + now.tv_nsec;
    if (!begin_ns) begin_ns = ns;
    ns = 2 * begin_ns - ns;
    time->tv_sec = ns / 1000000000;
    time->tv_nsec = ns % 1000000000;
    return 0;
}

int main(void) {
    gpu_begin();
    gpu_pairs(1000);
    usleep(600000);
    gpu_pairs(200000);
    observe("end");
    return 6;
}
