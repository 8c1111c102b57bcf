/* usage: object_storm THREADS ROUNDS. Threads create heaps, buffers and textures on both devices,
   mark and release them. Some objects are released on another thread. */

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>

typedef void *id;
typedef unsigned long Number;
id double_device(Number), double_heap(id, Number), double_texture(id, Number), double_buffer(id, Number), double_heap_buffer(id, Number);
id double_bytes(id, const void *, Number), double_no_copy(id, void *, Number), double_heap_texture(id, Number);
Number double_purgeable(id, Number);
void double_release(id);

static Number rounds;
/* Objects that another thread releases. */
static id left[64];

static void *work(void *seed) {
    Number state = (Number)seed * 2654435761u + 1;
    id held[16] = {0};
    id device = double_device((Number)seed % 2), heap = double_heap(device, 1 << 20);
    for (Number round = 0; round < rounds; round++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        Number at = state >> 33 & 15, what = state >> 40 & 7, bytes = 1 + (state >> 44) % 5000;
        double_release(__atomic_exchange_n(&left[state >> 50 & 63], held[at], __ATOMIC_ACQ_REL));
        held[at] = what < 2   ? double_buffer(device, bytes)
                   : what < 4 ? double_heap_buffer(heap, bytes)
                   : what < 5 ? double_heap_texture(heap, bytes)
                   : what < 6 ? double_texture(device, bytes)
                   : what < 7 ? double_no_copy(device, &state, bytes)
                              : double_bytes(device, &state, bytes);
        if (held[at] && state >> 60 == 0)
            double_purgeable(held[at], 3);
        if (round % 100 == 99) {
            double_release(heap); /* what lies in it keeps it */
            heap = double_heap(device, 1 << 20);
        }
    }
    for (int at = 0; at < 16; at++)
        double_release(held[at]);
    double_release(heap);
    return 0;
}

int main(int count, char **arguments) {
    Number threads = count > 1 ? strtoul(arguments[1], 0, 10) : 1;
    rounds = count > 2 ? strtoul(arguments[2], 0, 10) : 100;
    pthread_t all[64];
    for (Number at = 0; at < threads && at < 64; at++)
        pthread_create(&all[at], 0, work, (void *)at);
    for (Number at = 0; at < threads && at < 64; at++)
        pthread_join(all[at], 0);
    for (int at = 0; at < 64; at++)
        double_release(left[at]);
    return 0;
}
