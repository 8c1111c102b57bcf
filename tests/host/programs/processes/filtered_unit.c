/* Runs with the filter of a hardened systemd unit: SystemCallFilter=~@resources ends the process at
   these calls. */
#include "../../observe.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>

#ifndef SECCOMP_RET_KILL_PROCESS
#define SECCOMP_RET_KILL_PROCESS 0x80000000U /* missing in the headers of glibc 2.17 */
#endif

int main(void) {
#define KILL(call) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##call, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS)
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        KILL(setpriority), KILL(sched_setscheduler), KILL(sched_setparam), KILL(sched_setaffinity), KILL(ioprio_set),
        KILL(mbind), KILL(set_mempolicy), KILL(migrate_pages), KILL(move_pages), KILL(setrlimit),
        /* @debug, @privileged and @mount, which units also leave out. */
        KILL(ptrace), KILL(process_vm_readv), KILL(perf_event_open), KILL(chown), KILL(fchown), KILL(mount), KILL(bpf),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof rules / sizeof *rules, rules};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0);
    gpu_begin();
    gpu_pairs(1000);
    observe("end");
    usleep(300000);
    gpu_pairs(1000);
    return 4;
}
