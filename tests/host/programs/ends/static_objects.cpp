/* Static and thread-local objects allocate in constructors and free in destructors. */
extern "C" {
#include "../../observe.h"
}

struct Holder {
    const char *name;
    dptr kept;
    explicit Holder(const char *called) : name(called), kept(0) {
        if (!gpu_context) gpu_begin();
        gpu_thread();
        kept = gpu_alloc(2048);
        say("%s constructed", name);
    }
    ~Holder() {
        gpu_free(kept);
        say("%s destroyed", name);
    }
};

static Holder first("first"), second("second");

static void *thread(void *) {
    Holder local("in a thread");
    gpu_pairs(100);
    return 0;
}

int main() {
    static Holder inner("in main");
    pthread_join(start_thread(thread, 0), 0);
    observe("end");
    return 4;
}
