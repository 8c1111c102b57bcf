/* Sends the calling thread SIGTRAP after each instruction, but not in the handler. For x86-64.

   The program is linked with -rdynamic: its `pthread_sigmask` serves the libraries too. While
   SIGTRAP is blocked, the kernel would end the process at the next instruction. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <signal.h>

#ifdef __cplusplus
extern "C"
#endif
int pthread_sigmask(int how, const sigset_t *set, sigset_t *old) {
    sigset_t others;
    if (set) others = *set, sigdelset(&others, SIGTRAP);
    return sigprocmask(how, set ? &others : 0, old) ? errno : 0;
}

/* The stack below its pointer may be in use by the caller. */
#define SET_STEPPING(change) __asm__ volatile("lea -128(%%rsp), %%rsp\n pushfq\n " change ", (%%rsp)\n popfq\n lea 128(%%rsp), %%rsp" ::: "memory", "cc")

static inline void begin_steps(void) { SET_STEPPING("orq $0x100"); }
static inline void end_steps(void) { SET_STEPPING("andq $~0x100"); }
