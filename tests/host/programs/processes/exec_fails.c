/* exec fails; the program goes on and records all later calls. */
#include "../../observe.h"

int main(void) {
    gpu_begin();
    gpu_pairs(500);
    for (int i = 0; i < 3; i++) {
        execl("/nonexistent/program", "program", (char *)0);
        say("exec: %s", strerror(errno));
        gpu_pairs(500);
    }
    observe("end");
    return 0;
}
