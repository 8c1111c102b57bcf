/* The limit of file sizes is small: the program's own write raises SIGXFSZ, ours do not.

   says: .
   trace: partial */
#include "../../observe.h"

static volatile int signals;
static void handler(int number) { signals++; }

int main(void) {
    struct sigaction action = {.sa_handler = handler};
    sigaction(SIGXFSZ, &action, 0);
    gpu_begin();
    gpu_pairs(500);
    set_limit(RLIMIT_FSIZE, 4096);
    gpu_pairs(200000);
    int file = open("own", O_WRONLY | O_CREAT, 0600);
    char data[8192] = "";
    say("first write %ld", (long)write(file, data, sizeof data));
    say("second write %ld %s, signals %d", (long)write(file, data, 1), strerror(errno), signals);
    observe("end");
    return 0;
}
