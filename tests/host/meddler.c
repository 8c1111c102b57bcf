/* A bad neighbour: a preloaded library that changes one thing of the program's. The harness must
   notice each (tests/suite/host/test_harness.py). MEDDLE names the change. */
#include "observe_includes.h"

static void nothing(int number) {}
static void *for_ever(void *unused) {
    for (;;) pause();
}

static int is(const char *name) {
    const char *wanted = getenv("MEDDLE");
    return wanted && !strcmp(wanted, name);
}

static __attribute__((constructor)) void meddle(void) {
    struct sigaction action = {.sa_handler = nothing};
    struct rlimit limit = {100, 100};
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    if (is("handler")) sigaction(SIGUSR1, &action, 0);
    if (is("ignored signal")) signal(SIGPIPE, SIG_IGN);
    if (is("mask")) sigprocmask(SIG_BLOCK, &set, 0);
    if (is("pending signal")) sigprocmask(SIG_BLOCK, &set, 0), raise(SIGUSR2);
    if (is("descriptor")) dup(2);
    if (is("inheritable descriptor")) dup2(2, 700);
    if (is("thread")) {
        pthread_t thread;
        pthread_create(&thread, 0, for_ever, 0);
    }
    if (is("mapping")) mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (is("limit")) setrlimit(RLIMIT_NOFILE, &limit);
    if (is("umask")) umask(0);
    if (is("working folder")) chdir("/");
    if (is("environment")) setenv("MEDDLED", "yes", 1);
    if (is("child") && fork() == 0) _exit(0);
    if (is("daemon") && fork() == 0) {
        close(1), close(2);
        for (;;) pause();
    }
    if (is("timer")) setitimer(ITIMER_REAL, &(struct itimerval){{0, 0}, {1000, 0}}, 0);
    if (is("rounding")) __asm__ volatile("ldmxcsr %0" : : "m"((unsigned){0x3f80}));
    if (is("dumpable")) prctl(PR_SET_DUMPABLE, 0);
    if (is("name")) prctl(PR_SET_NAME, "meddled");
    if (is("priority")) setpriority(PRIO_PROCESS, 0, 3);
    if (is("death signal")) prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (is("subreaper")) prctl(PR_SET_CHILD_SUBREAPER, 1);
    if (is("alternate stack")) sigaltstack(&(stack_t){.ss_sp = malloc(65536), .ss_size = 65536}, 0);
    if (is("locale")) setlocale(LC_ALL, "C.UTF-8");
    if (is("output")) puts("meddled"), fflush(stdout);
    if (is("message")) fputs("meddled\n", stderr);
    if (is("file")) close(open("meddled", O_WRONLY | O_CREAT, 0600));
    if (is("exit code")) _exit(0);
    if (is("signal")) raise(SIGKILL);
}
