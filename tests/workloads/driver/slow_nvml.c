/* An NVML that takes its time, as libnvidia-ml.so.1. It counts in `nvml_calls` of the program while
   it is loaded or called, and starts a process as the real one starts nvidia-modprobe. */
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern volatile int nvml_calls, nvml_queries;

static int take_time(void) {
    nvml_calls++;
    usleep(20000);
    nvml_calls--;
    return 0;
}

__attribute__((constructor)) static void load(void) { take_time(); }

int nvmlInit_v2(void) {
    nvml_calls++;
    pid_t child = fork();
    if (child == 0) _exit(0);
    int failed = child < 0 || waitpid(child, 0, 0) != child;
    nvml_calls--;
    return failed || take_time();
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **device) {
    *device = (void *)1;
    return bus ? take_time() : 1;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, void *infos) {
    struct { unsigned pid; unsigned long long used; unsigned instances[2]; } info = {getpid(), 1 << 20, {0, 0}};
    if (!device || *count < 1) return 1;
    memcpy(infos, &info, sizeof info);
    *count = 1;
    nvml_queries++;
    return take_time();
}
