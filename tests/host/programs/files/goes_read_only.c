/* The file system meets an error and becomes read-only while the program records.

   needs: root
   place: ext4
   says: .
   trace: partial */
#include "../../observe.h"
#include <sys/sysmacros.h>

int main(void) {
    struct stat data;
    char path[200], device[200] = "";
    gpu_begin();
    gpu_pairs(5000);
    usleep(50000);
    CHECK(stat(".", &data) == 0);
    snprintf(path, sizeof path, "/sys/dev/block/%u:%u", major(data.st_dev), minor(data.st_dev));
    CHECK(readlink(path, device, sizeof device - 1) > 0);
    snprintf(path, sizeof path, "/sys/fs/ext4%s/trigger_fs_error", strrchr(device, '/'));
    int trigger = open(path, O_WRONLY);
    CHECK(trigger >= 0 && write(trigger, "host matrix", 11) > 0);
    close(trigger);
    for (int i = 0; i < 20; i++) {
        gpu_pairs(20000);
        usleep(5000);
    }
    say("own file: %s", open("own", O_WRONLY | O_CREAT, 0600) < 0 ? strerror(errno) : "opened");
    observe("end");
    return 0;
}
