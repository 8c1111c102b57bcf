/* Threads that call the driver and the C library, built with ThreadSanitizer. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

int cuInit(unsigned);
int cuDevicePrimaryCtxRetain(void **, int);
int cuCtxSetCurrent(void *);
int cuMemAlloc_v2(unsigned long long *, size_t);
int cuMemFree_v2(unsigned long long);

static void *context;

static void *work(void *unused) {
    cuCtxSetCurrent(context);
    for (int pair = 0; pair < 20000; pair++) {
        unsigned long long address;
        if (cuMemAlloc_v2(&address, 512) || cuMemFree_v2(address)) exit(2);
        free(malloc(1000));
    }
    return unused;
}

#ifdef RACE
static int racing;
static void *race(void *unused) { return racing++, unused; }
#endif

int main(void) {
    pthread_t threads[4];
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0)) return 1;
    for (int at = 0; at < 4; at++) pthread_create(&threads[at], 0, work, 0);
    for (int at = 0; at < 4; at++) pthread_join(threads[at], 0);
#ifdef RACE
    for (int at = 0; at < 4; at++) pthread_create(&threads[at], 0, race, 0);
    for (int at = 0; at < 4; at++) pthread_join(threads[at], 0);
#endif
    puts("done");
    return 0;
}
