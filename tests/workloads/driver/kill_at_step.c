/* Allocates and frees, and dies by SIGKILL at an instruction of the recorder in these two calls.

   usage: kill_at_step STEP      0: to the end. Prints the number of such instructions. */
#include "../../routes/driver.h"
#include "single_step.h"
#include <link.h>
#include <ucontext.h>
#include <unistd.h>

static uintptr_t begin, end;
static volatile long steps, last;

static int find_recorder(struct dl_phdr_info *library, size_t bytes, void *unused) {
    if (!strstr(library->dlpi_name, "libgpumemtrace.so")) return 0;
    const ElfW(Phdr) *code = library->dlpi_phdr;
    while (!(code->p_flags & PF_X)) code++;
    begin = library->dlpi_addr + code->p_vaddr, end = begin + code->p_memsz;
    return 1;
}

static void count_step(int number, siginfo_t *info, void *context) {
    uintptr_t at = ((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
    if (begin <= at && at < end && ++steps == last) kill(getpid(), SIGKILL);
}

int main(int argc, char **argv) {
    struct sigaction action = {.sa_sigaction = count_step, .sa_flags = SA_SIGINFO};
    void *context;
    CHECK(argc == 2 && sigaction(SIGTRAP, &action, 0) == 0);
    last = atol(argv[1]);
    CHECK(cuInit(0) == 0 && cuDevicePrimaryCtxRetain(&context, 0) == 0 && cuCtxSetCurrent(context) == 0);
    dl_iterate_phdr(find_recorder, 0);
    /* The first calls from here start the recording, and find all libraries. */
    for (int i = 0; i <= 100; i++) {
        if (i == 100) begin_steps();
        once(cuMemAlloc_v2, cuMemFree_v2, 512);
    }
    end_steps();
    printf("%ld\n", steps);
    return 0;
}
