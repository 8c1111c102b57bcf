/* Callers in C, each with another kind of frame. Compiled several times, with and without frame pointers. */

#include <string.h>

typedef void (*callback)(void *);

/* Large enough that both values of ROOM in the tests give instructions of the same length. */
#ifndef ROOM
#define ROOM 512
#endif

void touch(volatile char *room) { room[0] = 1; }

void call_plain(callback back, void *data, unsigned size) {
    back(data);
    __asm__ volatile("" : : "r"(size));
}

void call_with_room(callback back, void *data, unsigned size) {
    volatile char room[ROOM];
    touch(room);
    back(data);
    touch(room);
}

void call_with_any_room(callback back, void *data, unsigned size) {
    volatile char room[size + 1];
    touch(room);
    back(data);
    touch(room);
}

void call_aligned(callback back, void *data, unsigned size) {
    volatile char room[64] __attribute__((aligned(64)));
    touch(room);
    back(data);
    touch(room);
}

void call_aligned_with_any_room(callback back, void *data, unsigned size) {
    volatile char fixed[64] __attribute__((aligned(64)));
    volatile char room[size + 1];
    touch(fixed);
    touch(room);
    back(data);
    touch(room);
    touch(fixed);
}

/* Saves many registers. */
void call_busily(callback back, void *data, unsigned size) {
    unsigned long a = size, b = a * 3, c = b * 5, d = c * 7, e = d * 11, f = e * 13;
    for (unsigned i = 0; i < 2; i++) {
        if (i == size % 2) back(data);
        a += b ^ i, b += c, c += d, d += e, e += f, f += a;
    }
    __asm__ volatile("" : : "r"(a ^ b ^ c ^ d ^ e ^ f));
}
