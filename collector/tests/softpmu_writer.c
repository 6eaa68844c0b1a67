/* A process that writes a simulated machine's page as QEMU's plugin does, and misbehaves on
 * request: softpmu_writer PAGE CPUS BEHAVIOUR. Each CPU runs half of the time once it is armed. */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "collector/tests/page_writer.h"

#define TURN_NS    1000000L
#define CPUS_MAX   64
#define FAIL_AFTER 3000 /* turns: after the first windows, on a busy machine, too */

static struct tc_softpmu_page *page;
static const char *behaviour;
static uint32_t numbers[CPUS_MAX];

static uint64_t now_ns(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

static void *run_cpu(void *number)
{
    uint32_t cpu = *(const uint32_t *)number;
    const struct timespec turn = {.tv_nsec = TURN_NS};
    for (;;) {
        page_writer_advance(page, cpu);
        page_writer_sleep(page, cpu, now_ns());
        (void)nanosleep(&turn, NULL);
        page_writer_wake(page, cpu, now_ns());
        uint64_t until_ns = now_ns() + TURN_NS;
        while (now_ns() < until_ns) {
        }
    }
    return NULL;
}

static void wait_turns(int turns)
{
    const struct timespec turn = {.tv_nsec = TURN_NS};
    for (int i = 0; i < turns; i++) {
        (void)nanosleep(&turn, NULL);
    }
}

static int serve(uint32_t cpus)
{
    while (atomic_load_explicit(&page->wanted, memory_order_acquire) != TC_SOFTPMU_ARM ||
           strcmp(behaviour, "never-counts") == 0) {
        wait_turns(1);
    }
    for (uint32_t cpu = 0; cpu < cpus; cpu++) {
        pthread_t thread;
        numbers[cpu] = cpu;
        if (pthread_create(&thread, NULL, run_cpu, &numbers[cpu]) != 0) {
            return EXIT_FAILURE;
        }
    }
    atomic_store_explicit(&page->state, TC_SOFTPMU_ARMED, memory_order_release);
    wait_turns(FAIL_AFTER);
    if (strcmp(behaviour, "fails") == 0) {
        (void)snprintf(page->message, sizeof(page->message), "the cache models ran out of ways");
        atomic_store_explicit(&page->state, TC_SOFTPMU_FAILED, memory_order_release);
    } else if (strcmp(behaviour, "dies") == 0) {
        return EXIT_FAILURE;
    }
    for (;;) {
        (void)pause();
    }
}

int main(int argc, char **argv)
{
    int fd = argc == 4 ? open(argv[1], O_RDWR | O_CLOEXEC) : -1;
    uint32_t cpus = argc == 4 ? (uint32_t)strtoul(argv[2], NULL, 10) : 0;
    if (fd < 0 || cpus == 0 || cpus > CPUS_MAX) {
        (void)fprintf(stderr, "softpmu_writer PAGE CPUS BEHAVIOUR\n");
        return EXIT_FAILURE;
    }
    behaviour = argv[3];
    if (strcmp(behaviour, "no-page") == 0) {
        for (;;) {
            (void)pause();
        }
    }
    page = page_writer_make(fd, cpus);
    if (page == NULL) {
        perror("softpmu_writer");
        return EXIT_FAILURE;
    }
    if (strcmp(behaviour, "other-version") == 0) {
        page->version++;
    }
    return serve(cpus);
}
