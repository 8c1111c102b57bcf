/* An allocator that PyTorch may be given, as RMM is one: allocations beyond the GPU's memory throw.

   foreign_ functions ask the driver for each block. pool_ functions take blocks from pieces of
   memory: a piece is as large as all before it, or half of that if the driver refuses, down to the
   block itself, as in RMM's pool. Freed blocks of a pool are not used again. */
#include <dlfcn.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <new>

namespace {

using u64 = std::uint64_t;

void *driver(const char *name) {
    static void *library = dlopen("libcuda.so.1", RTLD_NOW);
    return dlsym(library, name);
}

bool ask(u64 *address, std::size_t size) {
    static auto call = reinterpret_cast<int (*)(u64 *, std::size_t)>(driver("cuMemAlloc_v2"));
    return call(address, size) == 0;
}

u64 pool_at, pool_end, pool_bytes;

}  // namespace

extern "C" void *foreign_malloc(ssize_t size, int, void *) {
    u64 address = 0;
    if (!ask(&address, size)) throw std::bad_alloc();
    return reinterpret_cast<void *>(address);
}

extern "C" void foreign_free(void *block, ssize_t, int, void *) {
    static auto call = reinterpret_cast<int (*)(u64)>(driver("cuMemFree_v2"));
    call(reinterpret_cast<u64>(block));
}

extern "C" void *pool_malloc(ssize_t bytes, int, void *) {
    u64 size = (static_cast<u64>(bytes) + 511) & ~511ULL;
    if (pool_end - pool_at < size) {
        u64 piece = pool_bytes > size ? pool_bytes : size, address = 0;
        while (!ask(&address, piece)) {
            if (piece == size) throw std::bad_alloc();
            piece = piece / 2 > size ? piece / 2 : size;
        }
        pool_at = address;
        pool_end = address + piece;
        pool_bytes += piece;
    }
    u64 block = pool_at;
    pool_at += size;
    return reinterpret_cast<void *>(block);
}

extern "C" void pool_free(void *, ssize_t, int, void *) {}
