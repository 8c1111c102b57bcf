// Callers in C++, which call back while an exception is in flight.

typedef void (*callback)(void *);

namespace {
struct CallsBack {
    callback back;
    void *data;
    ~CallsBack() { back(data); }
};

__attribute__((noinline)) void throws(callback back, void *data, unsigned depth) {
    CallsBack guard{back, data};
    if (depth == 0) throw 1;
    throws(back, data, depth - 1);
}
}

extern "C" void call_while_thrown(callback back, void *data, unsigned size) {
    try {
        throws(back, data, size % 4);
    } catch (int) {
        back(data);
    }
}
