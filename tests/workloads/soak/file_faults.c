/* Preload: makes the files of the recorder's thread slow, or kills the process at one of its calls.

   SOAK_WRITE_US delays each write of that thread. SOAK_KILL_AT=N kills the process in the Nth file
   call of that thread: half way through a write, before any other call.
   SOAK_COUNT_TO names a file that gets the number of its calls at exit. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

static long calls;

static int is_recorder(void) {
    static __thread int known;
    if (!known) {
        char name[16] = "";
        prctl(PR_GET_NAME, name);
        known = strcmp(name, "gpumemtrace") ? -1 : 1;
    }
    return known == 1;
}

static long number_of(const char *variable) {
    const char *text = getenv(variable);
    return text ? atol(text) : 0;
}

/* Returns true if the process is to die in this call. */
static int dies_in_call(void) {
    return is_recorder() && ++calls == number_of("SOAK_KILL_AT");
}

static void before_call(void) {
    if (dies_in_call()) kill(getpid(), SIGKILL);
}

static void delay_write(void) {
    if (is_recorder() && number_of("SOAK_WRITE_US")) usleep(number_of("SOAK_WRITE_US"));
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

/* A write in which the process dies has written half of its bytes. */
ssize_t write(int fd, const void *data, size_t bytes) {
    if (dies_in_call()) {
        REAL(write)(fd, data, bytes / 2);
        kill(getpid(), SIGKILL);
    }
    delay_write();
    return REAL(write)(fd, data, bytes);
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    if (dies_in_call()) {
        REAL(write)(fd, parts[0].iov_base, parts[0].iov_len);
        kill(getpid(), SIGKILL);
    }
    delay_write();
    return REAL(writev)(fd, parts, count);
}

ssize_t pwrite64(int fd, const void *data, size_t bytes, off64_t at) {
    if (dies_in_call()) {
        REAL(pwrite64)(fd, data, bytes / 2, at);
        kill(getpid(), SIGKILL);
    }
    delay_write();
    return REAL(pwrite64)(fd, data, bytes, at);
}

int ftruncate64(int fd, off64_t bytes) {
    before_call();
    return REAL(ftruncate64)(fd, bytes);
}

int linkat(int from, const char *old, int to, const char *name, int flags) {
    before_call();
    return REAL(linkat)(from, old, to, name, flags);
}

int rename(const char *old, const char *name) {
    before_call();
    return REAL(rename)(old, name);
}

int unlink(const char *name) {
    before_call();
    return REAL(unlink)(name);
}

int open64(const char *name, int flags, ...) {
    va_list more;
    va_start(more, flags);
    int mode = va_arg(more, int);
    va_end(more);
    before_call();
    return REAL(open64)(name, flags, mode);
}

int close(int fd) {
    before_call();
    return REAL(close)(fd);
}

__attribute__((destructor)) static void write_count(void) {
    const char *name = getenv("SOAK_COUNT_TO");
    FILE *file = name ? fopen(name, "w") : 0;
    if (!file) return;
    fprintf(file, "%ld\n", calls);
    fclose(file);
}
