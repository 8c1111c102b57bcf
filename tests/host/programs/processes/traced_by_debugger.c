/* A debugger attaches to all threads while they allocate, steps, reads memory and detaches. The
   kernel unblocks SIGTRAP in a thread that is stepped.

   differs: thread gpumemtrace blocked=fffffffe7ffbfeef */
#include "../../observe.h"
#include <sys/ptrace.h>
#include <sys/user.h>

static volatile int goes_on = 1;
static void *thread(void *unused) {
    gpu_thread();
    while (goes_on) gpu_pairs(20);
    return 0;
}

static int debug(pid_t process) {
    int steps = 0;
    /* On a busy machine, threads are inside system calls most of the time. */
    for (int round = 0; round < 10 || (steps <= 10 && round < 1000); round++) {
        char path[64];
        snprintf(path, sizeof path, "/proc/%d/task", process);
        DIR *all = opendir(path);
        for (struct dirent *entry; (entry = readdir(all));) {
            pid_t one = atoi(entry->d_name);
            struct user_regs_struct registers;
            if (*entry->d_name == '.' || ptrace(PTRACE_ATTACH, one, 0, 0)) continue;
            waitpid(one, 0, __WALL);
            for (int step = 0; step < 30; step++) {
                /* Not inside a system call: that may wait for another thread. */
                if (ptrace(PTRACE_GETREGS, one, 0, &registers) || registers.orig_rax != ~0ull) break;
                if ((unsigned short)ptrace(PTRACE_PEEKTEXT, one, registers.rip, 0) == 0x050f) break;
                ptrace(PTRACE_PEEKDATA, one, registers.rsp, 0);
                if (ptrace(PTRACE_SINGLESTEP, one, 0, 0) || waitpid(one, 0, __WALL) != one) break;
                steps++;
            }
            ptrace(PTRACE_DETACH, one, 0, 0);
        }
        closedir(all);
        usleep(3000);
    }
    return steps > 10;
}

int main(void) {
    pthread_t threads[2];
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
    gpu_begin();
    pid_t process = getpid(), child;
    for (int i = 0; i < 2; i++) threads[i] = start_thread(thread, 0);
    if ((child = fork()) == 0) _exit(debug(process) ? 7 : 8);
    wait_for(child, "the debugger");
    goes_on = 0;
    for (int i = 0; i < 2; i++) pthread_join(threads[i], 0);
    observe("end");
    return 0;
}
