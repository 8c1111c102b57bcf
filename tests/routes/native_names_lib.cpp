// The library of native_names.c: mangled names, a template, an inlined member function.
#include <cstddef>
#include <vector>

extern "C" int cuMemAlloc_v2(unsigned long long *, size_t);

namespace pool {
namespace {
std::vector<unsigned long long> blocks;
}

template <typename Unit>
struct Arena {
    __attribute__((always_inline)) inline int take(size_t count) {
        blocks.push_back(0);
        return cuMemAlloc_v2(&blocks.back(), count * sizeof(Unit));
    }
    __attribute__((noinline)) int grow(size_t count, const char *) {
        int result = take(count);
        return result + (blocks.size() > 100);
    }
};

__attribute__((noinline)) int grow(Arena<double> &arena, unsigned long count) {
    int result = arena.grow(count, "pool");
    return result + (blocks.size() > 200);
}
}  // namespace pool

extern "C" int pool_grow(size_t bytes) {
    pool::Arena<double> arena;
    int result = pool::grow(arena, bytes / sizeof(double));
    return result + (pool::blocks.size() > 300);
}
