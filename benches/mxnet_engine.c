/* Streams of tiny operations through the dependency engine of MXNet 1.x, timed. The counterpart of
 * `tensorc-bench bench-engine`, with the same patterns and random numbers (benches/src/engine.rs).
 *
 *     mxnet_engine LIBMXNET PATTERN OPS WORK_NS
 *
 * prints one JSON object: ops, done, push_s, total_s. */
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MAX_VARS = 1024, MAX_READS = 3 };

struct uses { int reads[MAX_READS], read_count, write; }; /* write is -1 for none */

static atomic_long done;
static long work_ns;
static int vars = 64;

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void operation(void *context, void *parameter) {
    (void)context, (void)parameter;
    if (work_ns > 0)
        for (double start = seconds(); seconds() - start < 1e-9 * (double)work_ns;) {}
    atomic_fetch_add_explicit(&done, 1, memory_order_relaxed);
}

static int below(int n) {
    static uint64_t state = 1;
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (int)((uint32_t)(state >> 33) % (uint32_t)n);
}

static struct uses draw(int reads) {
    struct uses u = {.write = below(vars)};
    while (u.read_count < reads) {
        int read = below(vars), fresh = read != u.write;
        for (int i = 0; i < u.read_count; i++) fresh &= u.reads[i] != read;
        if (fresh) u.reads[u.read_count++] = read;
    }
    return u;
}

static struct uses uses_of(const char *pattern, long op) {
    if (!strcmp(pattern, "chain")) return (struct uses){.write = 0};
    if (!strcmp(pattern, "indep")) return (struct uses){.write = (int)(op % 64)};
    if (!strcmp(pattern, "fan")) return (struct uses){.read_count = 1, .write = (int)(1 + op % 63)};
    if (!strcmp(pattern, "rdwr"))
        return op % 10 < 9 ? (struct uses){.read_count = 1, .write = -1} : (struct uses){.write = 0};
    return draw(vars == MAX_VARS ? 3 : 2);
}

int main(int argc, char **argv) {
    if (argc != 5) return fprintf(stderr, "usage: mxnet_engine LIBMXNET PATTERN OPS WORK_NS\n"), 2;
    void *lib = dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL);
    if (!lib) return fprintf(stderr, "%s\n", dlerror()), 1;
    int (*create)(const uint32_t *, uint32_t, int, int, int, void **) = dlsym(lib, "MXNDArrayCreate");
    int (*wait_all)(void) = dlsym(lib, "MXNDArrayWaitAll");
    int (*push)(void (*)(void *, void *), void *, void (*)(void *), const void *, void **, int, void **, int,
                const void *, int, const char *) = dlsym(lib, "MXEnginePushSyncND");
    if (!create || !wait_all || !push) return fprintf(stderr, "not a library of MXNet 1.x\n"), 1;
    const char *pattern = argv[2];
    long ops = atol(argv[3]);
    work_ns = atol(argv[4]);
    if (!strcmp(pattern, "mix1k")) vars = MAX_VARS;

    static void *arrays[MAX_VARS];
    const uint32_t shape = 1;
    for (int i = 0; i < vars; i++)
        if (create(&shape, 1, /* cpu */ 1, 0, 0, &arrays[i])) return 1;
    const int32_t cpu[2] = {1, 0};
    for (int i = 0; i < 1000; i++) push(operation, 0, 0, cpu, 0, 0, &arrays[i % vars], 1, 0, 0, "warm");
    wait_all();
    atomic_store(&done, 0);

    double start = seconds();
    for (long i = 0; i < ops; i++) {
        struct uses u = uses_of(pattern, i);
        void *reads[MAX_READS], *write = u.write < 0 ? NULL : arrays[u.write];
        for (int k = 0; k < u.read_count; k++) reads[k] = arrays[u.reads[k]];
        push(operation, 0, 0, cpu, reads, u.read_count, &write, u.write >= 0, 0, 0, "op");
    }
    double pushed = seconds() - start;
    wait_all();
    double total = seconds() - start;
    printf("{\"ops\": %ld, \"done\": %ld, \"push_s\": %.9f, \"total_s\": %.9f}\n", ops, atomic_load(&done), pushed, total);
    fflush(stdout);
    _exit(0); /* the library's threads do not end well */
}
