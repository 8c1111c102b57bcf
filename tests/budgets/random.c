/* Replaces getrandom(): the seeds of hash tables would change the counts from run to run. */
#include <string.h>
#include <sys/types.h>

ssize_t getrandom(void *buffer, size_t bytes, unsigned flags) {
    memset(buffer, 7, bytes);
    return bytes;
}
