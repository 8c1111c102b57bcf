/* The disk is lost while the program records: every write fails with EIO.

   needs: root
   place: ext4
   says: .
   trace: partial */
#include "../../observe.h"
#include <sys/ioctl.h>

int main(void) {
    int flags = 2, folder; /* EXT4_IOC_SHUTDOWN without flushing the journal */
    gpu_begin();
    gpu_pairs(5000);
    usleep(50000);
    folder = open(".", O_RDONLY);
    CHECK(ioctl(folder, _IOR('X', 125, unsigned), &flags) == 0);
    close(folder);
    for (int i = 0; i < 20; i++) {
        gpu_pairs(20000);
        usleep(5000);
    }
    say("own file: %s", open("own", O_WRONLY | O_CREAT, 0600) < 0 ? strerror(errno) : "opened");
    return 0;
}
