/* Folders, links and a FIFO have the names of trace and rings; they stay as they are.

   says: recording to .*trace */
#include "../../observe.h"

int main(void) {
    CHECK(symlink("elsewhere", "run.trace") == 0 && mkdir("run.trace.ring", 0700) == 0 && mkfifo("run.1.trace", 0600) == 0);
    gpu_begin();
    gpu_pairs(5000);
    observe("end");
    return 0;
}
