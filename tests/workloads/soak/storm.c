/* Threads that allocate and free through the driver for a while, optionally beside forks.

   usage: storm THREADS MILLISECONDS [CHILDREN_AT_ONCE]. It prints "begun" after its first call,
   "leaving" before it ends, and its pairs of calls as the last line. SOAK_PAUSE_US is a pause after
   each 64 pairs. Random sizes make each event take more than a byte of the trace. */
#include "../../routes/driver.h"
#include <pthread.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 64, KEPT = 32 };
static void *context;
static volatile int goes_on = 1;
static int pause_us;
static unsigned long long pairs[MOST];

static void say(const char *word) {
    CHECK(write(1, word, strlen(word)) == (ssize_t)strlen(word));
}

static double now_ms(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e3 + time.tv_nsec / 1e6;
}

static void *allocate(void *argument) {
    unsigned number = (unsigned)(uintptr_t)argument;
    unsigned long long random = 88172645463325252ull + number;
    dptr kept[KEPT] = {0};
    CHECK(cuCtxSetCurrent(context) == 0);
    while (goes_on) {
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        unsigned slot = random % KEPT;
        if (kept[slot]) CHECK(cuMemFree_v2(kept[slot]) == 0);
        CHECK(cuMemAlloc_v2(&kept[slot], 512 * (1 + (random >> 8) % 1000)) == 0);
        if (++pairs[number] % 64 == 0 && pause_us) usleep(pause_us);
    }
    for (int slot = 0; slot < KEPT; slot++)
        if (kept[slot]) CHECK(cuMemFree_v2(kept[slot]) == 0);
    return 0;
}

/* The driver refuses calls in a child; the recorder must ignore them. */
static void run_child(int number) {
    dptr refused;
    if (number % 2) cuMemAlloc_v2(&refused, 512);
    if (number % 3 == 0) usleep(2000);
    if (number % 5 == 0) exit(0);
    _exit(0);
}

int main(int argc, char **argv) {
    int count = argc > 1 ? atoi(argv[1]) : 0, children = argc > 3 ? atoi(argv[3]) : 0;
    CHECK(argc > 2 && count > 0 && count <= MOST);
    double end_ms = now_ms() + atoi(argv[2]);
    if (getenv("SOAK_PAUSE_US")) pause_us = atoi(getenv("SOAK_PAUSE_US"));
    CHECK(cuInit(0) == 0 && cuDevicePrimaryCtxRetain(&context, 0) == 0 && cuCtxSetCurrent(context) == 0);
    say("begun\n");
    pthread_t threads[MOST];
    for (int i = 0; i < count; i++) CHECK(pthread_create(&threads[i], 0, allocate, (void *)(uintptr_t)i) == 0);
    for (int number = 0; now_ms() < end_ms; number++) {
        if (!children) {
            usleep(1000);
            continue;
        }
        say("fork\n");
        for (int i = 0; i < children; i++) {
            pid_t child = fork();
            CHECK(child >= 0);
            if (child == 0) run_child(number + i);
        }
        while (wait(0) > 0) continue;
        say("forked\n");
    }
    goes_on = 0;
    unsigned long long total = 0;
    for (int i = 0; i < count; i++) {
        pthread_join(threads[i], 0);
        total += pairs[i];
    }
    say("leaving\n");
    printf("pairs %llu\n", total);
    return 0;
}
