/* Forks while the recorder may be inside the loader or NVML (slow_nvml.c).

   usage: forks WAY. It prints what happened.
   loop           forks until NVML was asked twice; counts the children that were forked inside it
   constructor    forks in the constructor of a library (fork_in_constructor.c), while the recorder
                  waits for the loader */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

int cuInit(unsigned);
int cuDevicePrimaryCtxRetain(void **, int);
int cuCtxSetCurrent(void *);
int cuMemAlloc_v2(uint64_t *, size_t);
#define CHECK(condition) do { if (!(condition)) { printf("failed: %s, line %d\n", #condition, __LINE__); abort(); } } while (0)

/* Calls in progress, and finished queries of the library. */
volatile int nvml_calls, nvml_queries;

static double now_s(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static void use_gpu(void) {
    void *context;
    uint64_t at;
    CHECK(cuInit(0) == 0 && cuDevicePrimaryCtxRetain(&context, 0) == 0 && cuCtxSetCurrent(context) == 0);
    CHECK(cuMemAlloc_v2(&at, 512) == 0);
}

/* How long the last fork took, without the life of the child. */
static double fork_s;

/* Returns whether the child was forked inside the library. */
static int fork_child(void) {
    int status;
    double start = now_s();
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) _exit(nvml_calls != 0);
    fork_s = now_s() - start;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
    return WEXITSTATUS(status);
}

int main(int argc, char **argv) {
    setvbuf(stdout, 0, _IONBF, 0);
    CHECK(argc == 2);
    use_gpu();
    if (!strcmp(argv[1], "loop")) {
        int inside = 0, slow = 0, forks = 0;
        for (double end = now_s() + 50; nvml_queries < 4 && now_s() < end; forks++) {
            int is_inside = fork_child();
            /* A fork waits for a second at most, which may be too little on a busy machine. */
            int is_slow = fork_s > 0.9;
            inside += is_inside && !is_slow;
            slow += is_slow;
            usleep(1000);
        }
        printf("queries %s, children inside %d, forks %s\n", nvml_queries < 4 ? "missing" : "made", inside, slow > forks / 4 ? "slow" : "prompt");
    } else {
        double start = now_s();
        CHECK(dlopen(argv[1], RTLD_NOW));
        printf("loaded within %s\n", now_s() - start < 30 ? "30 s" : "a long time");
    }
    return 0;
}
