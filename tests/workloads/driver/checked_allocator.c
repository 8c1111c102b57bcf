/* Checks the pluggable allocator from outside, without knowledge of its code.

   PyTorch gets the checked_ functions. Each forwards to gpumemtrace's and checks the result against
   the (simulated) driver and against earlier results. Violations are:

   - a block that overlaps a live one, or lies outside the driver's live allocations;
   - a block that other streams used, reused before an event on those streams, recorded when it was
     freed, has completed;
   - memory of one stream handed to another while the driver allocation is still the same.

   A violation ends the process with one line. CHECKED_FORGETS=1 hides record_stream from the
   allocator: the checker must then end the program. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

typedef uint64_t u64;
typedef struct { u64 from, to, stream, buffer; } range;
typedef struct { range *at; size_t count, room; } ranges;
typedef struct { u64 from, to, stream, event; } use;

static void *(*own_malloc)(ssize_t, int, void *);
static void (*own_free)(void *, ssize_t, int, void *);
static void (*own_record_stream)(void *, void *);
static void (*own_begin)(int, u64, u64, void *);
static void (*own_end)(int, u64, u64);
static void (*own_begin_stream)(int, void *, u64, u64);
static void (*own_end_stream)(int, void *);
static int (*event_create)(u64 *, unsigned), (*event_record)(u64, u64), (*event_query)(u64), (*event_destroy)(u64);
static int (*address_range)(u64 *, size_t *, u64), (*pointer_attribute)(u64 *, unsigned, u64);
static int (*context_get)(void **), (*context_set)(void *), (*primary_retain)(void **, int);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* Ranges of live tensors, and of freed ones by the stream they were made for. Uses by other
   streams: live (event 0), freed without an event yet (event 1), freed with an event. */
static ranges live, gone;
static use *uses;
static size_t use_count, use_room;
static int captures;
/* Blocks handed out; blocks that other streams had used; those of them that were reused. */
static u64 handed_out, waited, reused;

#define BREACH(...) (fprintf(stderr, "checked: " __VA_ARGS__), fputc('\n', stderr), abort())
#define MUST(call) do { int rc_ = (call); if (rc_) BREACH("%s: %d", #call, rc_); } while (0)

static range *add(ranges *list, range it)
{
    if (list->count == list->room)
        list->at = realloc(list->at, (list->room = 2 * list->room + 64) * sizeof *list->at);
    list->at[list->count] = it;
    return &list->at[list->count++];
}

static u64 buffer_of(u64 addr)
{
    u64 id = 0;
    return pointer_attribute(&id, 7, addr) ? 0 : id;
}

/* Makes the device's context current and returns the caller's, to be restored. */
static void *enter(int device)
{
    static void *primary[64];
    void *before = NULL;
    if (!primary[device])
        MUST(primary_retain(&primary[device], device));
    MUST(context_get(&before));
    MUST(context_set(primary[device]));
    return before;
}

static void record_what_waits(void)
{
    for (size_t i = 0; i < use_count; i++)
        if (uses[i].event == 1) {
            MUST(event_create(&uses[i].event, 2));
            MUST(event_record(uses[i].event, uses[i].stream));
        }
}

void *checked_malloc(ssize_t size, int device, void *stream)
{
    void *context = enter(device);
    pthread_mutex_lock(&lock);
    if (!captures)
        record_what_waits();
    pthread_mutex_unlock(&lock);
    MUST(context_set(context));
    void *pointer = own_malloc(size, device, stream); /* may throw */
    if (!pointer)
        return pointer;
    context = enter(device);
    pthread_mutex_lock(&lock);
    u64 from = (u64)pointer, to = from + size, base = 0, buffer = buffer_of(from);
    size_t bytes = 0;
    if (address_range(&base, &bytes, from) || from < base || to > base + bytes)
        BREACH("%llx+%zd lies outside the driver's %llx+%zu", (long long)from, size, (long long)base, bytes);
    for (size_t i = 0; i < live.count; i++)
        if (live.at[i].from < to && from < live.at[i].to)
            BREACH("%llx+%zd overlaps the live %llx", (long long)from, size, (long long)live.at[i].from);
    for (size_t i = 0; i < use_count;) {
        use *it = &uses[i];
        if (it->event && it->from < to && from < it->to) {
            if (it->event == 1 || event_query(it->event))
                BREACH("%llx+%zd is still used by stream %llx", (long long)from, size, (long long)it->stream);
            reused++;
            event_destroy(it->event);
            *it = uses[--use_count];
        } else
            i++;
    }
    for (size_t i = 0; i < gone.count;) {
        range old = gone.at[i];
        if (old.from >= to || from >= old.to) {
            i++;
            continue;
        }
        if (old.buffer == buffer && old.stream != (u64)stream)
            BREACH("%llx+%zd belonged to stream %llx and goes to stream %p", (long long)from, size, (long long)old.stream, stream);
        gone.at[i] = gone.at[--gone.count];
        if (old.buffer == buffer && old.from < from)
            add(&gone, (range){old.from, from, old.stream, buffer});
        if (old.buffer == buffer && old.to > to)
            add(&gone, (range){to, old.to, old.stream, buffer});
    }
    add(&live, (range){from, to, (u64)stream, buffer});
    handed_out++;
    pthread_mutex_unlock(&lock);
    MUST(context_set(context));
    return pointer;
}

void checked_free(void *pointer, ssize_t size, int device, void *stream)
{
    if (!pointer) {
        own_free(pointer, size, device, stream);
        return;
    }
    void *context = NULL;
    /* At process exit the driver may be gone. */
    bool has_driver = !context_get(&context);
    if (has_driver)
        context = enter(device);
    pthread_mutex_lock(&lock);
    size_t i = 0;
    while (i < live.count && live.at[i].from != (u64)pointer)
        i++;
    if (i == live.count)
        BREACH("%p is freed but was never handed out", pointer);
    range it = live.at[i];
    live.at[i] = live.at[--live.count];
    add(&gone, it);
    for (size_t u = 0; u < use_count; u++)
        if (!uses[u].event && uses[u].from == it.from) {
            uses[u].event = 1;
            waited++;
        }
    if (!captures && has_driver)
        record_what_waits();
    pthread_mutex_unlock(&lock);
    if (has_driver)
        MUST(context_set(context));
    own_free(pointer, size, device, stream);
}

void checked_record_stream(void *pointer, void *stream)
{
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < live.count; i++) {
        range it = live.at[i];
        if (it.from != (u64)pointer || it.stream == (u64)stream)
            continue;
        if (use_count == use_room)
            uses = realloc(uses, (use_room = 2 * use_room + 64) * sizeof *uses);
        uses[use_count++] = (use){it.from, it.to, (u64)stream, 0};
    }
    pthread_mutex_unlock(&lock);
    if (!getenv("CHECKED_FORGETS"))
        own_record_stream(pointer, stream);
}

static void count_capture(int by)
{
    pthread_mutex_lock(&lock);
    captures += by;
    pthread_mutex_unlock(&lock);
}

void checked_begin_allocate_to_pool(int device, u64 first, u64 second, void *filter)
{
    count_capture(1);
    own_begin(device, first, second, filter);
}

void checked_end_allocate_to_pool(int device, u64 first, u64 second)
{
    own_end(device, first, second);
    count_capture(-1);
}

void checked_begin_allocate_stream_to_pool(int device, void *stream, u64 first, u64 second)
{
    count_capture(1);
    own_begin_stream(device, stream, first, second);
}

void checked_end_allocate_stream_to_pool(int device, void *stream)
{
    own_end_stream(device, stream);
    count_capture(-1);
}

void checked_counts(u64 *counts)
{
    counts[0] = handed_out, counts[1] = waited, counts[2] = reused;
}

static void *need(void *library, const char *name)
{
    void *found = dlsym(library, name);
    if (!found)
        BREACH("%s is missing: %s", name, dlerror());
    return found;
}

void checked_use(const char *allocator)
{
    void *own = dlopen(allocator, RTLD_NOW), *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!own || !driver)
        BREACH("%s", dlerror());
#define OWN(variable, name) *(void **)&variable = need(own, "gpumemtrace_" name)
    OWN(own_malloc, "malloc");
    OWN(own_free, "free");
    OWN(own_record_stream, "record_stream");
    OWN(own_begin, "begin_allocate_to_pool");
    OWN(own_end, "end_allocate_to_pool");
    OWN(own_begin_stream, "begin_allocate_stream_to_pool");
    OWN(own_end_stream, "end_allocate_stream_to_pool");
#define DRIVER(variable, name) *(void **)&variable = need(driver, name)
    DRIVER(event_create, "cuEventCreate");
    DRIVER(event_record, "cuEventRecord");
    DRIVER(event_query, "cuEventQuery");
    DRIVER(event_destroy, "cuEventDestroy_v2");
    DRIVER(address_range, "cuMemGetAddressRange_v2");
    DRIVER(pointer_attribute, "cuPointerGetAttribute");
    DRIVER(context_get, "cuCtxGetCurrent");
    DRIVER(context_set, "cuCtxSetCurrent");
    DRIVER(primary_retain, "cuDevicePrimaryCtxRetain");
}
