/* In a folder like /tmp, another user has placed files with the names of trace and rings, holds
   them open and locked, and writes to them.

   needs: root
   place: sticky, protected-sticky */
#include "../../observe.h"
#include <sys/file.h>

static void second_user(int ready) {
    const char *names[] = {"run.trace", "run.trace.ring", "run.1.trace"};
    int files[3];
    CHECK(setgid(65533) == 0 && setuid(65533) == 0);
    umask(0);
    for (int i = 0; i < 3; i++) {
        files[i] = open(names[i], O_RDWR | O_CREAT, 0666);
        CHECK(files[i] >= 0 && flock(files[i], LOCK_EX) == 0 && write(files[i], "of another user\n", 16) == 16);
    }
    CHECK(write(ready, "x", 1) == 1);
    pid_t parent = getppid();
    while (getppid() == parent) {
        usleep(10000);
        for (int i = 0; i < 3; i++)
            if (pwrite(files[i], "of another user\n", 16, 0) != 16) _exit(1);
    }
    _exit(0);
}

int main(void) {
    int ready[2];
    char byte, text[64] = "";
    CHECK(pipe(ready) == 0);
    pid_t child = fork();
    if (child == 0) second_user(ready[1]);
    CHECK(read(ready[0], &byte, 1) == 1);
    CHECK(setgid(65534) == 0 && setuid(65534) == 0);
    gpu_begin();
    gpu_pairs(20000);
    usleep(100000);
    observe("end");
    read_file("run.trace", text, sizeof text);
    say("the other user's file: %s", text);
    return 0;
}
