/* Calls the driver on small stacks: of a thread, of a coroutine, and on the alternate signal stack.
   With "measure", the stacks are larger, and it prints how many bytes the calls have used at most.
   Without, a call that needs too much ends the process. */
#include "driver.h"
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>

#define PAINT 0x5a

static char *top;

static void __attribute__((noinline)) use_driver(void) {
    char here;
    top = &here;
    once(cuMemAlloc_v2, cuMemFree_v2, 4096);
}

/* A stack with a page below it that may not be touched. */
static char *new_stack(size_t size) {
    char *memory = mmap(0, size + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED && mprotect(memory, 4096, PROT_NONE) == 0);
    memset(memory + 4096, PAINT, size);
    return memory + 4096;
}

static void print_use(const char *kind, const char *stack) {
    while (*stack == PAINT) stack++;
    printf("%s %ld\n", kind, (long)(top - stack));
}

static void *thread(void *context) {
    CHECK(cuCtxSetCurrent(context) == 0);
    for (int call = 0; call < 3; call++) use_driver();
    return context;
}

static ucontext_t main_context, coroutine;
static void run_coroutine(void) { use_driver(); }
static void handler(int number) { (void)number; use_driver(); }

int main(int count, char **words) {
    int measures = count > 2 && !strcmp(words[2], "measure");
    int is_thread = count > 1 && !strcmp(words[1], "thread");
    /* The C library puts its own data of a thread on the stack, too. */
    size_t size = (is_thread ? 16384 : 8192) + (measures ? 8192 : 0);
    void *context;
    CHECK(count > 1 && cuInit(0) == 0 && cuDevicePrimaryCtxRetain(&context, 0) == 0 && cuCtxSetCurrent(context) == 0);
    char *stack = new_stack(size);
    if (is_thread) {
        pthread_attr_t attributes;
        pthread_t one;
        CHECK(pthread_attr_init(&attributes) == 0);
        CHECK(pthread_attr_setstack(&attributes, stack, size) == 0);
        CHECK(pthread_create(&one, &attributes, thread, context) == 0 && pthread_join(one, 0) == 0);
    } else if (!strcmp(words[1], "handler")) {
        stack_t alternate = {.ss_sp = stack, .ss_size = size};
        struct sigaction action = {.sa_handler = handler, .sa_flags = SA_ONSTACK};
        CHECK(sigaltstack(&alternate, 0) == 0 && sigaction(SIGUSR1, &action, 0) == 0);
        for (int call = 0; call < 3; call++) CHECK(raise(SIGUSR1) == 0);
    } else {
        for (int call = 0; call < 3; call++) {
            CHECK(getcontext(&coroutine) == 0);
            coroutine.uc_stack = (stack_t){.ss_sp = stack, .ss_size = size};
            coroutine.uc_link = &main_context;
            makecontext(&coroutine, run_coroutine, 0);
            CHECK(swapcontext(&main_context, &coroutine) == 0);
        }
    }
    if (measures) print_use(words[1], stack);
    return 0;
}
