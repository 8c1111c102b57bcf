/* A seccomp filter kills the only thread (SCMP_ACT_KILL of libseccomp). No exit handler runs. */
#include "../../observe.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>

#ifndef SECCOMP_RET_KILL_THREAD
#define SECCOMP_RET_KILL_THREAD 0 /* missing in the headers of glibc 2.17 */
#endif

static void handler(void) { say("exit handler"); }

int main(void) {
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getppid, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_THREAD),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof rules / sizeof *rules, rules};
    atexit(handler);
    gpu_begin();
    gpu_pairs(100);
    observe("end");
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0);
    syscall(SYS_getppid);
    say("not reached");
    return 0;
}
