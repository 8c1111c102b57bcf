/* Preload: the recorder's thread gets no memory once a file named "refuse" exists. */
#define _GNU_SOURCE
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);

static int is_refused(void) {
    char name[16] = "";
    prctl(PR_GET_NAME, name);
    return !strcmp(name, "gpumemtrace") && access("refuse", F_OK) == 0;
}

void *malloc(size_t bytes) { return is_refused() ? 0 : __libc_malloc(bytes); }
void *calloc(size_t count, size_t bytes) { return is_refused() ? 0 : __libc_calloc(count, bytes); }
void *realloc(void *old, size_t bytes) { return is_refused() ? 0 : __libc_realloc(old, bytes); }
