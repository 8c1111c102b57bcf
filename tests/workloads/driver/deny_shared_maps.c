/* Preload: mmap of shared files fails, as on some FUSE file systems. */
#include <errno.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

void *mmap(void *at, size_t len, int protection, int flags, int file, off_t offset) {
    if (file >= 0 && (flags & MAP_TYPE) == MAP_SHARED) {
        errno = ENODEV;
        return MAP_FAILED;
    }
    return (void *)syscall(SYS_mmap, at, len, protection, flags, file, offset);
}
