/* Starts programs by fork and exec, vfork and posix_spawn while it records: itself, and a shell. */
#include "../../observe.h"
#include <spawn.h>

int main(int argc, char **argv) {
    char *again[] = {"/proc/self/exe", "child", 0}, *shell[] = {"sh", "-c", "echo from the shell; exit 5", 0};
    char own[PATH_MAX] = "";
    gpu_begin();
    gpu_pairs(200);
    observe(argc > 1 ? "in-child" : "start");
    if (argc > 1) return 2;
    CHECK(readlink("/proc/self/exe", own, sizeof own - 1) > 0);
    for (int i = 0; i < 2; i++) {
        char **command = i ? shell : again;
        const char *file = i ? "/bin/sh" : own;
        pid_t child = fork();
        if (child == 0) {
            execv(file, command);
            _exit(127);
        }
        wait_for(child, "fork and exec");
        child = vfork();
        if (child == 0) {
            execv(file, command);
            _exit(127);
        }
        wait_for(child, "vfork");
        CHECK(posix_spawn(&child, file, 0, 0, command, environ) == 0);
        wait_for(child, "posix_spawn");
    }
    pid_t child = vfork();
    if (child == 0) _exit(9);
    wait_for(child, "vfork and _exit");
    gpu_pairs(200);
    observe("end");
    return 0;
}
