/* A library with a long constructor, like a Python extension at its import. The loader holds its
   lock meanwhile. CONSTRUCTOR chooses what the constructor does. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef unsigned long long dptr;
extern int cuMemAlloc_v2(dptr *, size_t), cuMemFree_v2(dptr);
extern volatile int is_in_constructor, may_go_on;
extern pthread_mutex_t program_lock;

static void *one_pair(void *unused) {
    dptr address;
    (void)unused;
    cuMemAlloc_v2(&address, 64);
    cuMemFree_v2(address);
    return 0;
}

__attribute__((constructor)) static void construct(void) {
    const char *what = getenv("CONSTRUCTOR");
    if (!strcmp(what, "wait")) {
        is_in_constructor = 1;
        while (!may_go_on) usleep(100);
    } else if (!strcmp(what, "lock")) {
        is_in_constructor = 1;
        usleep(50000);
        pthread_mutex_lock(&program_lock);
        pthread_mutex_unlock(&program_lock);
    } else if (!strcmp(what, "thread")) {
        pthread_t thread;
        pthread_create(&thread, 0, one_pair, 0);
        pthread_join(thread, 0);
    } else if (!strcmp(what, "storm")) {
        for (int i = 0; i < 500000; i++) one_pair(0);
    } else if (!strcmp(what, "exit")) {
        one_pair(0);
        exit(3);
    }
}
