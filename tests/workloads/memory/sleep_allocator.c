/* An allocator for a torch.cuda.MemPool that can return its memory and keep the addresses, as the
 * sleep mode of vLLM does. One device, one thread. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <sys/types.h>

typedef unsigned long long address;

struct location {
    int type, id;
};
struct properties {
    int type, handle_types;
    struct location location;
    void *windows;
    unsigned char flags[8];
};
struct access {
    struct location location;
    int flags;
};
struct segment {
    address at, handle;
    size_t bytes;
    int is_mapped;
};

enum { GRANULARITY = 2 << 20, MOST_SEGMENTS = 1024, DEVICE_MEMORY = 1, READ_AND_WRITE = 3 };

static struct segment segments[MOST_SEGMENTS];
static int count;

static void *driver(const char *name) {
    static void *library;
    if (!library)
        library = dlopen("libcuda.so.1", RTLD_NOW);
    return dlsym(library, name);
}

static int map(struct segment *segment) {
    struct properties properties = {.type = 1, .location = {DEVICE_MEMORY, 0}};
    int (*create)(address *, size_t, const struct properties *, address) = driver("cuMemCreate");
    int (*map_memory)(address, size_t, size_t, address, address) = driver("cuMemMap");
    int (*set_access)(address, size_t, const struct access *, size_t) = driver("cuMemSetAccess");
    int result = create(&segment->handle, segment->bytes, &properties, 0);
    if (result)
        return result;
    struct access access = {{DEVICE_MEMORY, 0}, READ_AND_WRITE};
    map_memory(segment->at, segment->bytes, 0, segment->handle, 0);
    segment->is_mapped = 1;
    return set_access(segment->at, segment->bytes, &access, 1);
}

static void unmap(struct segment *segment) {
    int (*unmap_memory)(address, size_t) = driver("cuMemUnmap");
    int (*release)(address) = driver("cuMemRelease");
    unmap_memory(segment->at, segment->bytes);
    release(segment->handle);
    segment->is_mapped = 0;
}

void *sleeping_malloc(ssize_t size, int device, void *stream) {
    struct segment *segment = &segments[count++];
    int (*reserve)(address *, size_t, size_t, address, address) = driver("cuMemAddressReserve");
    segment->bytes = (size + GRANULARITY - 1) / GRANULARITY * GRANULARITY;
    if (reserve(&segment->at, segment->bytes, 0, 0, 0) || map(segment))
        return NULL;
    return (void *)segment->at;
}

void sleeping_free(void *pointer, ssize_t size, int device, void *stream) {
    int (*free_addresses)(address, size_t) = driver("cuMemAddressFree");
    for (int number = 0; number < count; number++) {
        struct segment *segment = &segments[number];
        if (segment->at == (address)pointer) {
            if (segment->is_mapped)
                unmap(segment);
            free_addresses(segment->at, segment->bytes);
            segment->at = 0;
        }
    }
}

/* Returns the memory of all segments. */
void sleep_all(void) {
    for (int number = 0; number < count; number++)
        if (segments[number].at && segments[number].is_mapped)
            unmap(&segments[number]);
}

/* Gets memory for all segments again; the result of the first call that fails, or 0. */
int wake_all(void) {
    for (int number = 0; number < count; number++)
        if (segments[number].at && !segments[number].is_mapped) {
            int result = map(&segments[number]);
            if (result)
                return result;
        }
    return 0;
}
