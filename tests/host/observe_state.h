/* observe(): prints the state of the process, one line a fact. Included by observe.h.

   It asks the kernel, not libc: libc hides its own signals. Without /proc it prints what it can. */

/* Missing in the headers of glibc 2.17. */
#ifndef PR_GET_THP_DISABLE
#define PR_GET_THP_DISABLE 42
#endif

/* The kernel's layout; libc's struct sigaction differs. */
struct kernel_sigaction { void *handler; unsigned long flags; void *restorer; unsigned long mask; };

/* Writes the name of the file that holds `address`, and the place in it. */
static void name_address(void *address, char *name, size_t size) {
    Dl_info info;
    if (address == SIG_DFL || address == SIG_IGN) {
        snprintf(name, size, "%s", address == SIG_DFL ? "default" : "ignored");
    } else if (dladdr(address, &info) && info.dli_fname) {
        const char *base = strrchr(info.dli_fname, '/');
        snprintf(name, size, "%s+%#zx", base ? base + 1 : info.dli_fname, (char *)address - (char *)info.dli_fbase);
    } else {
        snprintf(name, size, "unknown");
    }
}

static void observe_signals(const char *point) {
    unsigned long mask = 0, pending = 0;
    stack_t alternate;
    for (int number = 1; number <= 64; number++) {
        struct kernel_sigaction action = {0};
        char name[256];
        if (syscall(SYS_rt_sigaction, number, 0, &action, 8)) continue;
        name_address(action.handler, name, sizeof name);
        say("@%s signal %d %s flags=%#lx mask=%#lx", point, number, name, action.flags, action.mask);
    }
    syscall(SYS_rt_sigprocmask, SIG_BLOCK, 0, &mask, 8);
    syscall(SYS_rt_sigpending, &pending, 8);
    say("@%s blocked %#lx pending %#lx", point, mask, pending);
    if (sigaltstack(0, &alternate) == 0) say("@%s alternate stack flags=%#x size=%zu", point, alternate.ss_flags, alternate.ss_size);
}

static void observe_descriptor(const char *point, int number) {
    char path[64], target[PATH_MAX] = "?";
    struct stat data;
    int flags = fcntl(number, F_GETFD), status = fcntl(number, F_GETFL);
    if (flags < 0) return;
    snprintf(path, sizeof path, "/proc/self/fd/%d", number);
    ssize_t length = readlink(path, target, sizeof target - 1);
    if (length > 0) target[length] = 0;
    CHECK(fstat(number, &data) == 0);
    /* The inode numbers of pipes and sockets are new in each run. */
    if (!S_ISREG(data.st_mode) && strchr(target, '[')) *strchr(target, '[') = 0;
    say("@%s descriptor %d cloexec=%d status=%#x type=%#o at=%ld %s", point, number, flags & FD_CLOEXEC, status,
        data.st_mode & S_IFMT, S_ISREG(data.st_mode) ? (long)lseek(number, 0, SEEK_CUR) : 0, target);
}

static void observe_descriptors(const char *point) {
    DIR *all = opendir("/proc/self/fd");
    if (!all) {
        say("@%s descriptors by number: %s", point, strerror(errno));
        for (int number = 0; number < 4096; number++) observe_descriptor(point, number);
        return;
    }
    for (struct dirent *entry; (entry = readdir(all));) {
        int number = atoi(entry->d_name);
        if (*entry->d_name != '.' && number != dirfd(all)) observe_descriptor(point, number);
    }
    closedir(all);
}

/* Copies the value of "Field:\t" out of a status file. */
static const char *status_field(const char *text, const char *field, char *value, size_t size) {
    const char *at = strstr(text, field);
    if (at) at += strlen(field), at += strspn(at, "\t ");
    snprintf(value, size, "%.*s", at ? (int)strcspn(at, "\n") : 1, at ? at : "?");
    return value;
}

static ssize_t read_file(const char *path, char *text, size_t size) {
    int file = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = file < 0 ? -1 : read(file, text, size - 1);
    if (file >= 0) close(file);
    text[length > 0 ? length : 0] = 0;
    return length;
}

/* Waits until the number of threads is stable: a joined thread may still be in the kernel. */
static void await_stable_threads(void) {
    struct stat before = {0}, now;
    for (int equal = 0, tries = 0; equal < 4 && tries < 400; tries++, before = now) {
        if (stat("/proc/self/task", &now)) return;
        equal = now.st_nlink == before.st_nlink ? equal + 1 : 0;
        usleep(3000);
    }
}

static void observe_threads(const char *point) {
    await_stable_threads();
    DIR *all = opendir("/proc/self/task");
    char path[300], text[4096], name[64], blocked[32], pending[32], state[32], processors[256], switches[32];
    if (!all) {
        say("@%s threads: %s", point, strerror(errno));
        return;
    }
    for (struct dirent *entry; (entry = readdir(all));) {
        if (*entry->d_name == '.') continue;
        snprintf(path, sizeof path, "/proc/self/task/%s/status", entry->d_name);
        if (read_file(path, text, sizeof text) <= 0) continue;
        say("@%s thread %s blocked=%s pending=%s processors=%s%s%s nice=%d", point, status_field(text, "Name:", name, sizeof name),
            status_field(text, "SigBlk:", blocked, sizeof blocked), status_field(text, "SigPnd:", pending, sizeof pending),
            status_field(text, "Cpus_allowed_list:", processors, sizeof processors),
            *status_field(text, "State:", state, sizeof state) == 'Z' ? " dead" : "",
            *status_field(text, "Seccomp:", switches, sizeof switches) == '0' ? "" : " filtered",
            getpriority(PRIO_PROCESS, atoi(entry->d_name)));
    }
    closedir(all);
}

/* Each kind of mapping once: rights and file. */
static void observe_mappings(const char *point) {
    static char seen[1024][96];
    int kinds = 0;
    FILE *maps = fopen("/proc/self/maps", "re");
    char line[PATH_MAX + 200];
    if (!maps) {
        say("@%s mappings: %s", point, strerror(errno));
        return;
    }
    while (fgets(line, sizeof line, maps)) {
        char rights[8] = "", path[PATH_MAX] = "", kind[96];
        int named = sscanf(line, "%*s %7s %*s %*s %*s %4095[^\n]", rights, path), known = 0;
        const char *base = strrchr(path, '/');
        snprintf(kind, sizeof kind, "%s %.80s", rights, named < 2 ? "anonymous" : base ? base + 1 : path);
        for (int i = 0; i < kinds && !known; i++) known = !strcmp(seen[i], kind);
        if (known || kinds == 1024) continue;
        strcpy(seen[kinds++], kind);
        say("@%s mapping %s", point, kind);
    }
    fclose(maps);
}

static void observe_process(const char *point) {
    uid_t real, effective, saved;
    gid_t group, effective_group, saved_group, groups[64];
    char text[4096], value[512];
    struct sched_param order = {0};
    unsigned mxcsr;
    unsigned short x87;
    siginfo_t child = {0};
    int death = 0, reaper = 0, terminal = open("/dev/tty", O_RDWR | O_CLOEXEC | O_NOCTTY);
    say("@%s terminal %s", point, terminal < 0 ? strerror(errno) : "yes");
    if (terminal >= 0) close(terminal);
    for (int which = 0; which < 16; which++) {
        struct rlimit limit;
        if (getrlimit(which, &limit) == 0) say("@%s limit %d %lu %lu", point, which, limit.rlim_cur, limit.rlim_max);
    }
    getresuid(&real, &effective, &saved);
    getresgid(&group, &effective_group, &saved_group);
    say("@%s user %d %d %d group %d %d %d groups %d", point, real, effective, saved, group, effective_group, saved_group, getgroups(64, groups));
    say("@%s session leader %d group leader %d", point, getsid(0) == getpid(), getpgid(0) == getpid());
    if (getcwd(value, sizeof value)) say("@%s folder %s", point, value);
    if (read_file("/proc/self/status", text, sizeof text) > 0) {
        const char *fields[] = {"Name:", "Umask:", "TracerPid:", "CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:", "NoNewPrivs:",
                                "Seccomp:", "VmLck:", "THP_enabled:", "Cpus_allowed:", "Mems_allowed_list:"};
        for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
            int traced = !strcmp(fields[i], "TracerPid:");
            status_field(text, fields[i], value, sizeof value);
            say("@%s %s %s", point, fields[i], traced && *value != '0' ? "yes" : value);
        }
    }
    if (read_file("/proc/self/oom_score_adj", text, sizeof text) > 0) say("@%s oom_score_adj %d", point, atoi(text));
    say("@%s POSIX timers %s", point, read_file("/proc/self/timers", text, sizeof text) > 0 ? "yes" : "none");
    prctl(PR_GET_PDEATHSIG, &death);
    prctl(PR_GET_CHILD_SUBREAPER, &reaper);
    say("@%s death signal %d subreaper %d dumpable %d keepcaps %d securebits %d timer slack %d THP disabled %d", point, death, reaper,
        prctl(PR_GET_DUMPABLE), prctl(PR_GET_KEEPCAPS), prctl(PR_GET_SECUREBITS), prctl(PR_GET_TIMERSLACK), prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0));
    sched_getparam(0, &order);
    say("@%s scheduler %d priority %d nice %d ioprio %ld", point, sched_getscheduler(0), order.sched_priority, getpriority(PRIO_PROCESS, 0),
        syscall(SYS_ioprio_get, 1, 0));
    for (int which = 0; which < 3; which++) {
        struct itimerval timer;
        if (getitimer(which, &timer) == 0)
            say("@%s interval timer %d armed %d every %ld us", point, which, timer.it_value.tv_sec || timer.it_value.tv_usec,
                timer.it_interval.tv_sec * 1000000 + timer.it_interval.tv_usec);
    }
    __asm__ volatile("stmxcsr %0" : "=m"(mxcsr));
    __asm__ volatile("fnstcw %0" : "=m"(x87));
    say("@%s MXCSR %#x x87 %#x", point, mxcsr & ~0x3f, x87);
    say("@%s locale %s", point, setlocale(LC_ALL, 0));
    int known = waitid(P_ALL, 0, &child, WEXITED | WSTOPPED | WCONTINUED | WNOHANG | WNOWAIT);
    say("@%s children %s", point, known ? strerror(errno) : child.si_pid ? "one has ended" : "all run");
    for (char **variable = environ; variable && *variable; variable++) say("@%s variable %s", point, *variable);
}

/* Prints everything that can be observed from inside. `point` is a name without blanks. */
static __attribute__((unused)) void observe(const char *point) {
    int saved = errno;
    say("@%s errno %d", point, saved);
    observe_signals(point);
    observe_descriptors(point);
    observe_threads(point);
    observe_mappings(point);
    observe_process(point);
    errno = saved;
}
