/* Signals are consumed by sigwait, signalfd and masks; none is lost and none appears. */
#include "../../observe.h"
#include <sys/signalfd.h>

int main(void) {
    sigset_t all, some;
    siginfo_t info;
    sigfillset(&all);
    gpu_begin();
    gpu_pairs(500);
    CHECK(pthread_sigmask(SIG_SETMASK, &all, 0) == 0);
    for (int number = 1; number <= 31; number++)
        if (number != SIGKILL && number != SIGSTOP) kill(getpid(), number);
    gpu_pairs(500);
    observe("pending");
    sigemptyset(&some);
    sigaddset(&some, SIGUSR1);
    int file = signalfd(-1, &some, SFD_NONBLOCK | SFD_CLOEXEC);
    struct signalfd_siginfo read_info;
    CHECK(read(file, &read_info, sizeof read_info) == sizeof read_info);
    say("signalfd: %u", read_info.ssi_signo);
    sigdelset(&all, SIGSTOP);
    for (;;) {
        struct timespec none = {0, 0};
        int number = sigtimedwait(&all, &info, &none);
        if (number < 0) break;
        gpu_pairs(5);
        say("sigwait: %d code %d", number, info.si_code);
    }
    observe("end");
    return 0;
}
