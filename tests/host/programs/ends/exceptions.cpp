/* Exceptions pass through frames that make GPU calls; one leaves main uncaught. */
extern "C" {
#include "../../observe.h"
}
#include <stdexcept>

struct Buffer {
    dptr kept;
    explicit Buffer(size_t bytes) : kept(gpu_alloc(bytes)) {}
    ~Buffer() { gpu_free(kept); }
};

static int deep(int depth) {
    Buffer buffer(512 * (depth + 1));
    if (depth == 0) throw std::runtime_error("deep");
    return deep(depth - 1) + 1;
}

int main() {
    gpu_begin();
    int caught = 0;
    for (int i = 0; i < 200; i++) {
        try {
            deep(20);
        } catch (const std::runtime_error &) {
            caught++;
        }
    }
    say("caught %d", caught);
    observe("end");
    Buffer last(512);
    throw std::logic_error("uncaught");
}
