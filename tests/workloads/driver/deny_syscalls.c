/* Runs a program under seccomp; the named system calls fail with EPERM.
   usage: deny_syscalls NAME[,NAME...] PROGRAM [ARGUMENTS] */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static const struct { const char *name; int number; } CALLS[] = {
    {"membarrier", SYS_membarrier}, {"process_vm_readv", SYS_process_vm_readv}, {"getrandom", SYS_getrandom},
    {"madvise", SYS_madvise}, {"renameat2", SYS_renameat2}, {"fallocate", SYS_fallocate}, {"setpriority", SYS_setpriority},
    {"flock", SYS_flock}, {"fcntl", SYS_fcntl}, {"prctl", SYS_prctl}, {"tgkill", SYS_tgkill}, {"clone3", SYS_clone3},
};

int main(int argc, char **argv) {
    struct sock_filter program[32] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))};
    unsigned short len = 1;
    for (char *name = strtok(argv[1], ","); name; name = strtok(0, ",")) {
        int number = -1;
        for (size_t i = 0; i < sizeof CALLS / sizeof *CALLS; i++)
            if (!strcmp(CALLS[i].name, name)) number = CALLS[i].number;
        if (number < 0) return fprintf(stderr, "unknown call %s\n", name), 100;
        program[len++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1);
        program[len++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM);
    }
    program[len++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog filter = {len, program};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter))
        return perror("seccomp"), 100;
    execv(argv[2], argv + 2);
    return perror(argv[2]), 100;
}
