/* Callers in C, each with another kind of frame. Compiled with and without frame pointers. */

#include <string.h>

typedef void (*callback)(void *);

/* Large enough that both values in the tests give instructions of the same length. */
#ifndef BUFFER_BYTES
#define BUFFER_BYTES 512
#endif

void touch(volatile char *buffer) { buffer[0] = 1; }

void call_plain(callback back, void *data, unsigned size) {
    back(data);
    __asm__ volatile("" : : "r"(size));
}

void call_with_buffer(callback back, void *data, unsigned size) {
    volatile char buffer[BUFFER_BYTES];
    touch(buffer);
    back(data);
    touch(buffer);
}

void call_with_variable_buffer(callback back, void *data, unsigned size) {
    volatile char buffer[size + 1];
    touch(buffer);
    back(data);
    touch(buffer);
}

void call_aligned(callback back, void *data, unsigned size) {
    volatile char buffer[64] __attribute__((aligned(64)));
    touch(buffer);
    back(data);
    touch(buffer);
}

void call_aligned_with_variable_buffer(callback back, void *data, unsigned size) {
    volatile char fixed[64] __attribute__((aligned(64)));
    volatile char buffer[size + 1];
    touch(fixed);
    touch(buffer);
    back(data);
    touch(buffer);
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
