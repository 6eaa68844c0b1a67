/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "collector/softpmu/shared.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "collector/softpmu/core.h"
#include "collector/softpmu/timing.h"

static uint64_t round_up(uint64_t bytes, uint64_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

static int map_file(const char *path, size_t bytes, void **memory, struct tc_error *err)
{
    int rc = 0;
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0)
        return tc_error_set(err, errno, "%s: cannot make the page of counters: %s", path,
                            strerror(errno));
    if (ftruncate(fd, 0) != 0) {
        rc = tc_error_set(err, errno, "%s: cannot empty it: %s", path, strerror(errno));
        goto out;
    }
    rc = posix_fallocate(fd, 0, (off_t)bytes);
    if (rc != 0) {
        rc = tc_error_set(err, rc, "%s: no room for %zu bytes of counters: %s", path, bytes,
                          strerror(rc));
        goto out;
    }
    void *mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapped == MAP_FAILED)
        rc = tc_error_set(err, errno, "%s: mmap: %s", path, strerror(errno));
    else
        *memory = mapped;
out:
    (void)close(fd);
    return rc;
}

static int map_memory(size_t bytes, void **memory, struct tc_error *err)
{
    void *mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED)
        return tc_error_set(err, errno, "no memory for %zu bytes of counters: %s", bytes,
                            strerror(errno));
    *memory = mapped;
    return 0;
}

int tc_shared_create(const char *path, const struct tc_machine *machine, uint32_t cpus,
                     bool whole_system, struct tc_softpmu_page **page, struct tc_error *err)
{
    uint64_t offset = round_up(sizeof **page, TC_SOFTPMU_LINE_BYTES);
    uint64_t counters = (uint64_t)TC_SOFTPMU_MODES * tc_machine_slots(machine);
    uint64_t stride = round_up(sizeof(struct tc_softpmu_cpu) + counters * sizeof(uint64_t),
                               TC_SOFTPMU_LINE_BYTES);
    uint64_t bytes = offset + stride * cpus;
    void *memory = NULL;
    int rc = path != NULL ? map_file(path, bytes, &memory, err) : map_memory(bytes, &memory, err);
    if (memory == NULL)
        return rc;
    struct tc_softpmu_page *p = memory;
    p->version = TC_SOFTPMU_VERSION;
    p->cpus = cpus;
    p->total_bytes = bytes;
    p->cpus_offset = offset;
    p->cpu_stride = stride;
    p->whole_system = whole_system;
    p->pid = getpid();
    tc_timing_describe(machine, p);
    atomic_store_explicit(&p->magic, TC_SOFTPMU_MAGIC, memory_order_release);
    *page = p;
    return 0;
}

int tc_shared_create_failed(const char *path, int code, const char *message, struct tc_error *err)
{
    void *memory = NULL;
    int rc = map_file(path, sizeof(struct tc_softpmu_page), &memory, err);
    if (memory == NULL)
        return rc;
    struct tc_softpmu_page *page = memory;
    page->version = TC_SOFTPMU_VERSION;
    page->total_bytes = sizeof *page;
    page->pid = getpid();
    tc_shared_fail(page, code, message);
    atomic_store_explicit(&page->magic, TC_SOFTPMU_MAGIC, memory_order_release);
    (void)munmap(memory, sizeof *page);
    return 0;
}

void tc_shared_detach(struct tc_softpmu_page *page)
{
    /* Where this fails the parent's counts would be wrong: a fork without memory ends here. */
    if (mmap(page, page->total_bytes, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
        _exit(1);
}

void tc_shared_fail(struct tc_softpmu_page *page, int code, const char *message)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    if (atomic_load(&page->state) != TC_SOFTPMU_FAILED) {
        (void)snprintf(page->message, sizeof page->message, "%s", message);
        page->error = code;
        atomic_store_explicit(&page->state, TC_SOFTPMU_FAILED, memory_order_release);
    }
    pthread_mutex_unlock(&lock);
}

static uint64_t now_ns(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* Readers retry while the sequence is odd or has changed. */
static void set_idle(struct tc_softpmu_cpu *cpu, uint64_t idle_ns, uint64_t since_ns)
{
    uint64_t sequence = atomic_load_explicit(&cpu->idle_sequence, memory_order_relaxed);
    atomic_store_explicit(&cpu->idle_sequence, sequence + 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    atomic_store_explicit(&cpu->idle_ns, idle_ns, memory_order_relaxed);
    atomic_store_explicit(&cpu->idle_since_ns, since_ns, memory_order_relaxed);
    atomic_store_explicit(&cpu->idle_sequence, sequence + 2, memory_order_release);
}

void tc_shared_idle(struct tc_softpmu_cpu *cpu)
{
    set_idle(cpu, atomic_load_explicit(&cpu->idle_ns, memory_order_relaxed), now_ns());
}

void tc_shared_resume(struct tc_softpmu_cpu *cpu)
{
    uint64_t idle_ns = atomic_load_explicit(&cpu->idle_ns, memory_order_relaxed);
    uint64_t since_ns = atomic_load_explicit(&cpu->idle_since_ns, memory_order_relaxed);
    if (since_ns != 0)
        set_idle(cpu, idle_ns + (now_ns() - since_ns), 0);
}
