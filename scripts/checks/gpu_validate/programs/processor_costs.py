"""Times what each event needs of the processor: its counter, the kernel's clock, a shared line."""

from witness import *  # noqa: F403
import shutil, subprocess  # noqa: E401

SOURCE = r"""
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>
#include <x86intrin.h>
#define ROUNDS 2000000
static struct { _Alignas(64) _Atomic uint64_t value; } shared, own;
static _Atomic int stop;
static volatile uint64_t sink;
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}
static void *reader(void *unused) {
    while (!atomic_load_explicit(&stop, memory_order_relaxed)) sink = atomic_load_explicit(&shared.value, memory_order_acquire);
    return unused;
}
#define TIME(name, body) do { double begin = now(); for (uint64_t i = 0; i < ROUNDS; i++) { body; } \
    printf("%s=%.3f\n", name, (now() - begin) / ROUNDS); } while (0)
int main(void) {
    pthread_t thread;
    struct timespec t;
    TIME("read of the counter", sink = __rdtsc());
    TIME("read of the kernel's clock", clock_gettime(CLOCK_MONOTONIC, &t));
    TIME("store", atomic_store_explicit(&own.value, i, memory_order_release));
    TIME("atomic addition", atomic_fetch_add_explicit(&own.value, 1, memory_order_relaxed));
    pthread_create(&thread, 0, reader, 0);
    TIME("store to a line that another core reads", atomic_store_explicit(&shared.value, i, memory_order_release));
    atomic_store(&stop, 1);
    pthread_join(thread, 0);
}
"""

compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
if compiler is None:
    give_up("there is no C compiler")
with open("costs.c", "w") as file:
    file.write(SOURCE)
built = subprocess.run([compiler, "-O2", "-pthread", "-o", "costs", "costs.c"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
if built.returncode:
    give_up("the C program cannot be built: " + built.stdout.strip()[-200:])
out = subprocess.run(["./costs"], stdout=subprocess.PIPE, universal_newlines=True, check=True).stdout
emit(**{name: float(ns) for name, ns in (line.rsplit("=", 1) for line in out.splitlines())})
exit_now()
