/* Loads plugin.so on a second thread and makes GPU calls on the first one meanwhile.

   usage: program ACT WARM    WARM allocations come before the plugin
     nothing        only loads the plugin
     locked_pair    allocates under a lock that the constructor wants
     every_call     calls each function of calls.h while the constructor waits */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef unsigned long long dptr;
extern int cuInit(unsigned), cuMemAlloc_v2(dptr *, size_t);
volatile int is_in_constructor, may_go_on;
pthread_mutex_t program_lock = PTHREAD_MUTEX_INITIALIZER;

/* Lines CALL(name): generated from the symbols that the recorder exports. */
#define CALL(name) extern int name(void *, void *, void *, void *, void *, void *);
#include "calls.h"
#undef CALL

static void *load(void *unused) {
    (void)unused;
    if (!dlopen("plugin.so", RTLD_NOW)) puts(dlerror());
    return 0;
}

int main(int count, char **arguments) {
    dptr address;
    pthread_t loader;
    const char *act = arguments[1];
    if (count != 3) return 2;
    cuInit(0);
    for (int i = 0; i < atoi(arguments[2]); i++) cuMemAlloc_v2(&address, 64);
    pthread_create(&loader, 0, load, 0);
    if (strcmp(act, "nothing")) while (!is_in_constructor) usleep(100);
    if (!strcmp(act, "locked_pair")) {
        pthread_mutex_lock(&program_lock);
        cuMemAlloc_v2(&address, 64);
        pthread_mutex_unlock(&program_lock);
    } else if (!strcmp(act, "every_call")) {
#define CALL(name) name(0, 0, 0, 0, 0, 0);
#include "calls.h"
        may_go_on = 1;
    }
    pthread_join(loader, 0);
    puts("done");
    return 0;
}
