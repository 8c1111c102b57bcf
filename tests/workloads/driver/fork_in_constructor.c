/* A library with a constructor that forks, with the loader's lock. The recorder has tried to load
   NVML by then, and waits for that lock. */
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

__attribute__((constructor)) static void load(void) {
    int status;
    sleep(2);
    pid_t child = fork();
    if (child == 0) _exit(7);
    if (waitpid(child, &status, 0) != child || WEXITSTATUS(status) != 7) abort();
}
