/* While the process is stopped, another one opens and truncates all files of the folder. 

   trace: partial
   says: . */
#include "../../observe.h"

static void truncate_all(void) {
    DIR *folder = opendir(".");
    for (struct dirent *entry; (entry = readdir(folder));) {
        int file = open(entry->d_name, O_WRONLY);
        if (file >= 0 && ftruncate(file, 0)) continue;
    }
}

int main(void) {
    pid_t parent = getpid();
    gpu_begin();
    gpu_pairs(100);
    usleep(500000);
    pid_t child = fork();
    if (child == 0) {
        kill(parent, SIGSTOP);
        pid_t writer = fork();
        if (writer == 0) {
            truncate_all();
            _exit(0);
        }
        usleep(300000);
        kill(parent, SIGCONT);
        waitpid(writer, 0, 0);
        _exit(0);
    }
    siginfo_t ended = {0};
    while (!ended.si_pid) {
        gpu_pairs(100);
        waitid(P_PID, child, &ended, WEXITED | WNOHANG | WNOWAIT);
    }
    gpu_pairs(50000);
    wait_for(child, "the other");
    observe("end");
    return 0;
}
