/* Threads that allocate and free through the driver, and many ways for a process to end.

   usage: process_ends ENDING [ARGUMENTS]. Each ending prints its actions, so that traced and
   untraced runs can be compared. */
#include "../../routes/driver.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sched.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 4 };
static void *context;
static volatile int goes_on = 1;

static void pairs(int count) {
    for (int pair = 0; pair < count && goes_on; pair++) once(cuMemAlloc_v2, cuMemFree_v2, (size_t)512 * (1 + pair % 64));
}

static void *thread_of_pairs(void *count) {
    CHECK(cuCtxSetCurrent(context) == 0);
    pairs((int)(intptr_t)count);
    return 0;
}

static pthread_t threads[THREADS];

static void begin_storm(int count) {
    for (int i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], 0, thread_of_pairs, (void *)(intptr_t)count) == 0);
}

static void end_storm(void) {
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], 0);
}

static void storm(int count) {
    begin_storm(count);
    end_storm();
}

/* Blocks until a line arrives on standard input, or end of file. */
static void wait_for_line(const char *message) {
    char line[64];
    printf("%s\n", message);
    fflush(stdout);
    CHECK(read(0, line, sizeof line) >= 0);
}

static void wait_for(pid_t child) {
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    printf("child %d %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -1, WIFSIGNALED(status) ? WTERMSIG(status) : 0);
}

static void *exits(void *unused) {
    exit(9);
}

static void pairs_at_exit(void) { pairs(10); }

static void set_limit(int which, rlim_t value) {
    struct rlimit limit;
    CHECK(getrlimit(which, &limit) == 0);
    limit.rlim_cur = value;
    CHECK(setrlimit(which, &limit) == 0);
}

static size_t address_space_bytes(void) {
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file && fscanf(file, "%ld", &pages) == 1);
    fclose(file);
    return (size_t)pages * 4096;
}

/* The address-space limit may precede the library's first event: current use plus a margin. */
static void begin(void) {
    const char *margin = getenv("ADDRESS_SPACE_MARGIN_MIB");
    CHECK(cuInit(0) == 0);
    if (margin) set_limit(RLIMIT_AS, address_space_bytes() + atoi(margin) * MIB);
    CHECK(cuDevicePrimaryCtxRetain(&context, 0) == 0 && cuCtxSetCurrent(context) == 0);
}

static void handler(int number, siginfo_t *info, void *unused) {
    char line[64];
    int len = snprintf(line, sizeof line, "handler %d %d\n", number, info->si_code);
    if (write(1, line, len) == len) _exit(20);
}

int main(int argc, char **argv) {
    const char *ending = argc > 1 ? argv[1] : "";
    int is = 0;
#define ENDING(name) (!strcmp(ending, name) && (is = 1))
    setvbuf(stdout, 0, _IOLBF, 0);
    if (ENDING("nothing")) return 3;
    if (ENDING("main_thread_ends_without_proc")) { /* as in a sandbox */
        CHECK(unshare(CLONE_NEWNS) == 0 && mount("none", "/", 0, MS_REC | MS_PRIVATE, 0) == 0);
        CHECK(mount("none", "/proc", "tmpfs", 0, 0) == 0);
    }
    begin();
    if (ENDING("forever")) {
        begin_storm(1 << 30);
        wait_for_line("begun");
        goes_on = 0;
        end_storm();
    } else if (ENDING("now_and_then")) { /* until a line arrives, and a little longer */
        struct pollfd input = {.fd = 0, .events = POLLIN};
        printf("begun\n");
        for (int left = 200; left > 0; left -= poll(&input, 1, 0)) {
            pairs(1);
            usleep(1000);
        }
    } else if (ENDING("in_two_parts")) { /* with a pause in between, in which others do something */
        storm(500);
        wait_for_line("first part");
        storm(500);
        wait_for_line("second part");
        storm(500);
    } else {
        storm(argc > 2 && atoi(argv[2]) ? atoi(argv[2]) : 200);
        printf("worked\n");
    }
    if (ENDING("segv")) *(volatile int *)8 = 1;
    if (ENDING("abort")) abort();
    if (ENDING("term")) raise(SIGTERM);
    if (ENDING("int")) raise(SIGINT);
    if (ENDING("kill")) raise(SIGKILL);
    if (ENDING("handled_segv")) {
        struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO};
        CHECK(sigaction(SIGSEGV, &action, 0) == 0);
        *(volatile int *)8 = 1;
    }
    if (ENDING("own_bus")) { /* a file of its own that it cuts itself */
        int file = open("own", O_RDWR | O_CREAT, 0600);
        CHECK(file >= 0 && ftruncate(file, 8192) == 0);
        volatile char *own = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        CHECK(own != MAP_FAILED && ftruncate(file, 0) == 0);
        own[5000] = 1;
    }
    if (ENDING("signals")) { /* what the program sees of its own signals */
        for (int number = 1; number < 65; number++) {
            struct sigaction action;
            if (sigaction(number, 0, &action) == 0) printf("%d %d\n", number, action.sa_handler != SIG_DFL);
        }
    }
    if (ENDING("exit")) exit(5);
    if (ENDING("_exit")) _exit(6);
    if (ENDING("quick_exit")) quick_exit(7);
    if (ENDING("at_exit")) atexit(pairs_at_exit);
    if (ENDING("exit_in_thread")) {
        pthread_t thread;
        CHECK(pthread_create(&thread, 0, exits, 0) == 0);
        for (;;) pause();
    }
    if (ENDING("exit_in_storm")) {
        begin_storm(1 << 30);
        usleep(20000);
        exit(10);
    }
    if (ENDING("main_thread_ends") || ENDING("main_thread_ends_without_proc")) {
        begin_storm(500);
        pthread_exit(0);
    }
    if (ENDING("exec")) execv(argv[3], argv + 3);
    if (ENDING("exec_in_storm")) {
        begin_storm(1 << 30);
        usleep(20000);
        execv(argv[3], argv + 3);
    }
    if (ENDING("out_of_memory")) /* until the kernel ends it */
        for (;;) {
            char *more = malloc(MIB);
            CHECK(more);
            memset(more, 1, MIB);
        }
    if (ENDING("fork_storm")) {
        begin_storm(1 << 30);
        for (int i = 0; i < 30; i++) {
            pid_t child = fork();
            if (child == 0) {
                if (i % 3 == 0) _exit(i);
                if (i % 3 == 1) exit(i);
                pairs(3); /* the driver refuses a child, or serves it; the trace is the parent's */
                _exit(i);
            }
            wait_for(child);
        }
        goes_on = 0;
        end_storm();
    }
    if (ENDING("vfork")) {
        begin_storm(1 << 30);
        for (int i = 0; i < 30; i++) {
            pid_t child = vfork();
            if (child == 0) {
                if (i % 2) execv(argv[3], argv + 3);
                _exit(4);
            }
            wait_for(child);
        }
        goes_on = 0;
        end_storm();
    }
    if (ENDING("spawn")) {
        extern char **environ;
        begin_storm(1 << 30);
        for (int i = 0; i < 20; i++) {
            pid_t child;
            CHECK(posix_spawn(&child, argv[3], 0, 0, argv + 3, environ) == 0);
            wait_for(child);
        }
        goes_on = 0;
        end_storm();
    }
    if (ENDING("no_more_memory")) { /* the limit equals the current use, so requests fail */
        set_limit(RLIMIT_AS, address_space_bytes());
        size_t refused = 0;
        for (int i = 0; i < 50; i++) refused += malloc(64 * MIB) == 0;
        printf("refused %zu\n", refused);
        pairs(20000);
    }
    if (ENDING("no_more_files")) {
        set_limit(RLIMIT_NOFILE, 3);
        pairs(5000);
    }
    if (ENDING("no_larger_files")) {
        set_limit(RLIMIT_FSIZE, 4096);
        pairs(100000);
    }
    if (ENDING("closes_all")) {
        for (int number = 3; number < 1024; number++) close(number);
        pairs(5000);
    }
    if (ENDING("closes_all_and_waits")) {
        wait_for_line("ready");
        for (int number = 3; number < 1024; number++) close(number);
        wait_for_line("closed");
        pairs(5000);
    }
    CHECK(is || !*ending || !strcmp(ending, "works"));
    printf("done\n");
    return 0;
}
