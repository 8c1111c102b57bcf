// Threads that leave or interrupt a driver call, or the recorder, in every way that C offers.
//
// usage: interrupted_hooks WAY [COUNT]. Each way prints what happened, so that traced and untraced
// runs can be compared. The driver is c_driver.c.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <atomic>
#include <dlfcn.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <string>
#include <sys/time.h>
#include <unistd.h>
#include <vector>
#ifdef __x86_64__
#include "single_step.h"
#endif

extern "C" {
int cuInit(unsigned);
int cuDevicePrimaryCtxRetain(void **, int);
int cuCtxSetCurrent(void *);
int cuMemAlloc_v2(uint64_t *, size_t);
int cuMemFree_v2(uint64_t);
extern void (*volatile c_driver_call)(void);
extern volatile size_t c_driver_call_size;
extern void (*volatile c_driver_query)(void);
}

#define CHECK(condition) do { if (!(condition)) { printf("failed: %s, line %d\n", #condition, __LINE__); abort(); } } while (0)

enum { SPECIAL = 777 };
static void *context;
static std::atomic<int> cleanups{0};
static sigjmp_buf back;
static std::atomic<int> handled{0};
static std::atomic<bool> is_over{false};

static void pair(size_t size = 512) {
    uint64_t at = 0;
    CHECK(cuMemAlloc_v2(&at, size) == 0);
    CHECK(cuMemFree_v2(at) == 0);
}

static void pairs(int count) {
    for (int i = 0; i < count; i++) pair(512 + i % 64);
}

// Like a library's error path: gives GPU memory back while the thread unwinds.
static void free_memory(void *addr) {
    CHECK(cuMemFree_v2((uint64_t)(uintptr_t)addr) == 0);
    pairs(3);
    cleanups++;
}

template <typename Body> static void with_cleanup(Body body) {
    uint64_t at = 0;
    CHECK(cuMemAlloc_v2(&at, 4096) == 0);
    pthread_cleanup_push(free_memory, (void *)(uintptr_t)at);
    body();
    pthread_cleanup_pop(1);
}

struct Destructor {
    ~Destructor() { cleanups += 100; }
};

static void in_thread(void *(*body)(void *), void *argument = nullptr) {
    pthread_t thread;
    void *result;
    CHECK(pthread_create(&thread, nullptr, body, argument) == 0);
    CHECK(pthread_join(thread, &result) == 0);
    printf("thread: %s, cleanups %d\n", result == PTHREAD_CANCELED ? "cancelled" : "returned", cleanups.load());
}

static void cancel_self() { CHECK(pthread_cancel(pthread_self()) == 0); }

static void inside_driver(void (*call)(void)) {
    c_driver_call_size = SPECIAL;
    c_driver_call = call;
}

static void use_scheduler(int policy) {
    sched_param priority = {};
    priority.sched_priority = policy == SCHED_FIFO;
    pthread_setschedparam(pthread_self(), policy, &priority);
}

static void deeper(int frames, int count) {
    volatile char room[200];
    memset((void *)room, 1, sizeof room);
    if (frames > 0) deeper(frames - 1, count);
    else pairs(count);
    room[0] = 2;
}

// Calls from several depths, some deeper and some less deep than the call that was left.
static void go_on(int count) {
    deeper(20, count);
    pairs(count);
    deeper(3, count);
}

static void on_signal_pairs(int) {
    pairs(5);
    handled++;
}

// Rounds of calls that the storm has begun outside of handlers.
static std::atomic<int> rounds{0};

// Makes calls once a round. Handlers that call back to back would keep the program in one call, and
// fill the ring behind it.
static void on_signal_storm(int signal) {
    static int last_round = -1;
    if (last_round == rounds) return;
    last_round = rounds;
    on_signal_pairs(signal);
}

static void on_signal_jump(int) {
    handled++;
    siglongjmp(back, 1);
}

static void handle(int signal, void (*handler)(int), int flags = 0) {
    struct sigaction action = {};
    action.sa_handler = handler;
    action.sa_flags = flags;
    CHECK(sigaction(signal, &action, nullptr) == 0);
}

// As large as the main stack: a signal that arrives while a jump leaves a handler begins another
// one on the same stack, and many may follow.
static void own_signal_stack() {
    stack_t stack = {};
    stack.ss_size = 8 << 20;
    stack.ss_sp = malloc(stack.ss_size);
    CHECK(sigaltstack(&stack, nullptr) == 0);
}

// Sends signals to the calling thread at random times until `is_over`.
static pthread_t target;
static void *sender(void *) {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, nullptr);
    for (unsigned i = 1; !is_over; i = i * 1664525 + 1013904223) {
        pthread_kill(target, SIGUSR1);
        for (volatile unsigned wait = 0; wait < i >> 20; wait = wait + 1) { }
    }
    return nullptr;
}

int main(int argc, char **argv) {
    std::string way = argc > 1 ? argv[1] : "";
    static int count;
    count = argc > 2 ? atoi(argv[2]) : 1000;
    setvbuf(stdout, nullptr, _IONBF, 0);
    CHECK(cuInit(0) == 0);
    auto use_context = [] {
        CHECK(cuDevicePrimaryCtxRetain(&context, 0) == 0);
        CHECK(cuCtxSetCurrent(context) == 0);
    };
    if (way == "cancel_at_start") {
        // The first call of the process starts the recording, with a cancellation pending.
        in_thread([](void *) -> void * {
            Destructor destructor;
            cancel_self();
            with_cleanup([] { pairs(10); pthread_testcancel(); });
            return nullptr;
        });
    } else if (way == "cancel_in_storm") {
        // Waits for ring space, and pauses, come while a cancellation is pending.
        use_context();
        in_thread([](void *) -> void * {
            cancel_self();
            with_cleanup([] { pairs(count); pthread_testcancel(); });
            return nullptr;
        });
    } else if (way == "cancel_new_threads") {
        use_context();
        std::vector<pthread_t> threads(120);
        static pthread_barrier_t all_there;
        pthread_barrier_init(&all_there, nullptr, threads.size());
        for (auto &thread : threads)
            CHECK(pthread_create(&thread, nullptr, [](void *) -> void * {
                pthread_barrier_wait(&all_there);
                cancel_self();
                with_cleanup([] {
                    pairs(5);
                    pthread_barrier_wait(&all_there);
                    pthread_testcancel();
                });
                return nullptr;
            }, nullptr) == 0);
        int cancelled = 0;
        for (auto &thread : threads) {
            void *result;
            pthread_join(thread, &result);
            cancelled += result == PTHREAD_CANCELED;
        }
        printf("%d cancelled, cleanups %d\n", cancelled, cleanups.load());
    } else if (way == "cancel_at_lookup") {
        in_thread([](void *) -> void * {
            cancel_self();
            void *driver = dlopen("libcuda.so.1", RTLD_NOW);
            auto alloc = (int (*)(uint64_t *, size_t))dlsym(driver, "cuMemAlloc_v2");
            auto release = (int (*)(uint64_t))dlsym(driver, "cuMemFree_v2");
            uint64_t at;
            CHECK(alloc(&at, 512) == 0 && release(at) == 0 && dlclose(driver) == 0);
            with_cleanup([] { pthread_testcancel(); });
            return nullptr;
        });
    } else if (way == "cancel_at_exit") {
        use_context();
        pairs(10);
        in_thread([](void *) -> void * {
            cancel_self();
            pairs(10);
            exit(3);
        });
    } else if (way == "cancel_in_driver" || way == "exit_in_driver" || way == "cancel_blocked") {
        use_context();
        pairs(10);
        inside_driver(way == "cancel_in_driver" ? +[] { cancel_self(); pthread_testcancel(); }
                      : way == "exit_in_driver" ? +[] { pthread_exit(nullptr); }
                                                : +[] { handled = 1; for (;;) pause(); });
        auto body = [](void *) -> void * {
            Destructor destructor;
            pairs(10);
            with_cleanup([] { pair(SPECIAL); });
            return nullptr;
        };
        if (way == "cancel_blocked") {
            pthread_t thread;
            void *result;
            CHECK(pthread_create(&thread, nullptr, body, nullptr) == 0);
            while (!handled) usleep(100);
            CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0);
            printf("%d, cleanups %d\n", result == PTHREAD_CANCELED, cleanups.load());
        } else {
            in_thread(body);
        }
        pairs(10);
    } else if (way == "throw_in_driver") {
        use_context();
        inside_driver([] { throw 5; });
        for (int i = 0; i < 10; i++) {
            try {
                Destructor destructor;
                pair(SPECIAL);
            } catch (int thrown) {
                pairs(thrown);
            }
        }
        printf("cleanups %d\n", cleanups.load());
    } else if (way == "handler_in_driver" || way == "handler_in_driver_other_stack") {
        use_context();
        bool other = way == "handler_in_driver_other_stack";
        if (other) own_signal_stack();
        handle(SIGUSR1, on_signal_pairs, other ? SA_ONSTACK : 0);
        inside_driver([] { raise(SIGUSR1); });
        for (int i = 0; i < count; i++) pair(SPECIAL);
        pairs(10);
        printf("handled %d\n", handled.load());
    } else if (way == "nested_handlers") {
        // Handlers that are interrupted in their own calls, three deep.
        use_context();
        handle(SIGUSR1, [](int) { pair(handled++ < 2 ? SPECIAL : 512); }, SA_NODEFER);
        inside_driver([] { raise(SIGUSR1); });
        pair(SPECIAL);
        pairs(10);
        printf("handled %d\n", handled.load());
    } else if (way == "jump_between_handlers") {
        // A handler in a call makes another one, from which a second handler jumps back into it.
        // The first handler returns without a further call. Then the ring fills up.
        use_context();
        handle(SIGUSR1, [](int) { if (sigsetjmp(back, 1) == 0) pair(SPECIAL); });
        handle(SIGUSR2, on_signal_jump);
        static int depth;
        inside_driver([] { raise(depth++ == 0 ? SIGUSR1 : SIGUSR2); });
        for (int i = 0; i < 10; i++) depth = 0, pair(SPECIAL);
        pairs(count);
        printf("handled %d\n", handled.load());
    } else if (way == "throw_after_stop") {
        // The process is stopped inside a call, which is left when it continues.
        use_context();
        for (int i = 0; i < 40; i++) pairs(10), usleep(50000);
        inside_driver([] { kill(getpid(), SIGSTOP); throw 5; });
        // The call is left before the recorder's thread runs, if this is allowed.
        use_scheduler(SCHED_FIFO);
        try { pair(SPECIAL); } catch (int) { }
        use_scheduler(SCHED_OTHER);
        pairs(count);
    } else if (way == "forwarding_call") {
        use_context();
        inside_driver([] { pair(); });
        for (int i = 0; i < 10; i++) pair(SPECIAL);
    } else if (way == "forwarding_query") {
        // A driver that calls itself through symbols with hooks, also when a hook queries it.
        use_context();
        c_driver_query = [] { pair(); };
        for (int i = 0; i < 5; i++) pairs(10), usleep(150000);
    } else if (way == "long_handler_in_driver") {
        // The ring is full of a handler's calls, behind a call in flight.
        use_context();
        handle(SIGUSR1, [](int) { pairs(count); handled++; });
        inside_driver([] { raise(SIGUSR1); });
        pair(SPECIAL);
        pairs(10);
        printf("handled %d\n", handled.load());
    } else if (way == "jump_from_driver" || way == "jump_from_driver_other_stack") {
        use_context();
        bool other = way == "jump_from_driver_other_stack";
        if (other) own_signal_stack();
        handle(SIGUSR1, on_signal_jump, other ? SA_ONSTACK : 0);
        inside_driver([] { raise(SIGUSR1); });
        for (volatile int i = 0; i < 10; i = i + 1) {
            if (sigsetjmp(back, 1) == 0) deeper(10, 0), pair(SPECIAL);
            go_on(count);
        }
        printf("handled %d\n", handled.load());
    } else if (way == "handler_storm" || way == "jump_storm" || way == "handler_storm_other_stack" || way == "jump_storm_other_stack") {
        use_context();
        target = pthread_self();
        bool other = way.find("other_stack") != std::string::npos;
        if (other) own_signal_stack();
        bool jumps = way[0] == 'j';
        if (jumps && sigsetjmp(back, 1) != 0) goto storm;
        handle(SIGUSR1, jumps ? on_signal_jump : on_signal_storm, other ? SA_ONSTACK : 0);
        {
            pthread_t thread;
            CHECK(pthread_create(&thread, nullptr, sender, nullptr) == 0);
            pthread_detach(thread);
        }
    storm:
        // 5,000 rounds and 1,000 handlers fit into an empty ring. The limit matters if the sender
        // rarely runs.
        for (; handled < count && rounds < 5000; rounds++) deeper(handled % 7, 3);
        is_over = true;
        handle(SIGUSR1, SIG_IGN);
        go_on(100);
        printf("handled enough\n");
#ifdef __x86_64__
    } else if (way == "handler_at_each_step" || way == "handler_at_each_step_other_stack") {
        // At each instruction of a pair of calls at which a signal may arrive: one handler in ten
        // steps, so that no two of them come while one hook begins.
        use_context();
        bool other = way.find("other_stack") != std::string::npos;
        if (other) own_signal_stack();
        static int step;
        struct sigaction action = {};
        action.sa_flags = SA_SIGINFO | (other ? SA_ONSTACK : 0);
        action.sa_sigaction = [](int, siginfo_t *, void *context) {
            if (step++ % 10 == 0 && !sigismember(&((ucontext_t *)context)->uc_sigmask, SIGUSR1)) pair();
        };
        CHECK(sigaction(SIGTRAP, &action, nullptr) == 0);
        // The first pairs from here begin the recording.
        for (int i = -5; i < 10; i++) {
            step = i;
            if (i == 0) begin_steps();
            pair();
        }
        end_steps();
        pairs(10);
#endif
    } else if (way == "exit_in_handler" || way == "_exit_in_handler") {
        use_context();
        target = pthread_self();
        handle(SIGUSR1, way[0] == '_' ? +[](int) { if (++handled == count) _exit(7); }
                                      : +[](int) { if (++handled == count) exit(7); });
        pthread_t thread;
        CHECK(pthread_create(&thread, nullptr, sender, nullptr) == 0);
        auto storm = [](void *) -> void * {
            sigset_t all;
            sigfillset(&all);
            pthread_sigmask(SIG_SETMASK, &all, nullptr);
            for (;;) pairs(50), usleep(1000);
        };
        for (int i = 0; i < 3; i++) CHECK(pthread_create(&thread, nullptr, storm, nullptr) == 0);
        for (;;) pairs(1);
    } else {
        printf("unknown way\n");
        return 2;
    }
    return 0;
}
