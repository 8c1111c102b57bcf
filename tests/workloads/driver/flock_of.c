/* Preload: flock() behaves as on the network file system in FLOCK_OF, as seen by one node:
   nfs    an exclusive lock needs a file that is open for writing (flock(2))
   none   there are no locks (Lustre mounted with noflock, mount.lustre(8))
   local  locks of other nodes are not seen (Lustre mounted with localflock, NFS with local_lock)
   None of them has leases. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

int flock(int file, int operation) {
    const char *kind = getenv("FLOCK_OF");
    int is_exclusive = (operation & ~LOCK_NB) == LOCK_EX;
    int error = 0;
    if (!kind) abort();
    if (!strcmp(kind, "none")) error = ENOSYS;
    if (!strcmp(kind, "nfs") && is_exclusive && (fcntl(file, F_GETFL) & O_ACCMODE) == O_RDONLY) error = EBADF;
    if (error) {
        errno = error;
        return -1;
    }
    return strcmp(kind, "local") ? (int)syscall(SYS_flock, file, operation) : 0;
}

int fcntl(int file, int command, ...) {
    va_list list;
    va_start(list, command);
    long argument = va_arg(list, long);
    va_end(list);
    if (command == F_SETLEASE) {
        errno = EINVAL;
        return -1;
    }
    return (int)syscall(SYS_fcntl, file, command, argument);
}
