/* A filter for all threads kills each thread that writes to a file or asks for pending signals.
   The program makes no such call.

   The writer thread does, so it is gone. Neither a full ring nor the end waits for it, and no
   thread of the program prints that.

   stopped: the recorder's thread was ended, as by a seccomp filter
   trace: partial */
#include "../../observe.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>

#ifndef SECCOMP_RET_KILL_THREAD
#define SECCOMP_RET_KILL_THREAD 0 /* missing in the headers of glibc 2.17 */
#endif
#ifndef SYS_seccomp
#define SYS_seccomp 317
#endif

int main(void) {
#define KILL(call) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##call, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_THREAD)
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        KILL(pwrite64), KILL(pwritev), KILL(rt_sigpending),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof rules / sizeof *rules, rules};
    gpu_begin();
    gpu_pairs(1000);
    usleep(300000);
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(syscall(SYS_seccomp, 1 /* SECCOMP_SET_MODE_FILTER */, 1 /* of all threads */, &filter) == 0);
    gpu_pairs(300000);
    observe("end");
    return 5;
}
