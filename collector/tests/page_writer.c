#include "collector/tests/page_writer.h"

#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SLOT_INSTRUCTIONS, SLOT_FETCH_MISSES, SHARED_SLOTS, SLOT_L2_MISSES = SHARED_SLOTS };

#define SLOTS  (SHARED_SLOTS + WRITER_VARIANTS)
#define STRIDE 512

static void name(char *text, const char *value)
{
    (void)snprintf(text, TC_SOFTPMU_NAME_MAX, "%s", value);
}

static void define(struct tc_softpmu_event *event, const char *text, enum tc_softpmu_origin origin,
                   uint32_t slot, double weight)
{
    name(event->name, text);
    event->origin = origin;
    event->varies |= slot >= SHARED_SLOTS;
    event->terms[event->terms_count++] = (struct tc_softpmu_term){.weight = weight, .slot = slot};
}

static void describe(struct tc_softpmu_page *page, uint32_t cpus)
{
    struct tc_softpmu_event *events = page->event;
    page->version = TC_SOFTPMU_VERSION;
    page->cpus = cpus;
    page->cpus_offset = (sizeof(*page) + 63) / 64 * 64;
    page->cpu_stride = STRIDE;
    page->total_bytes = page->cpus_offset + (uint64_t)cpus * STRIDE;
    page->slots = SLOTS;
    page->shared_slots = SHARED_SLOTS;
    page->variant_slots = 1;
    page->variants = WRITER_VARIANTS;
    page->events = WRITER_EVENTS;
    page->whole_system = 1;
    page->clock_hz = 500000000;
    page->bus_clock_hz = 100000000;
    page->pid = getpid();
    name(page->machine, "written");
    name(page->variant_names[0], "512k");
    name(page->variant_names[1], "1m");
    define(&events[WRITER_INSTRUCTIONS], "INST_RETIRED", TC_SOFTPMU_COUNTED, SLOT_INSTRUCTIONS, 1);
    define(&events[WRITER_FETCH_MISSES], "IFU_IFETCH_MISS", TC_SOFTPMU_SIMULATED, SLOT_FETCH_MISSES,
           1);
    define(&events[WRITER_L2_MISSES], "L2_LINES_IN", TC_SOFTPMU_SIMULATED, SLOT_L2_MISSES, 1);
    define(&events[WRITER_CYCLES], "CPU_CLK_UNHALTED", TC_SOFTPMU_MODELLED, SLOT_INSTRUCTIONS,
           WRITER_BASE);
    define(&events[WRITER_CYCLES], "CPU_CLK_UNHALTED", TC_SOFTPMU_MODELLED, SLOT_L2_MISSES,
           WRITER_PENALTY);
}

struct tc_softpmu_page *page_writer_make(int fd, uint32_t cpus)
{
    size_t bytes = (sizeof(struct tc_softpmu_page) + 63) / 64 * 64 + (size_t)cpus * STRIDE;
    if (ftruncate(fd, (off_t)bytes) != 0) {
        return NULL;
    }
    struct tc_softpmu_page *page = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (page == MAP_FAILED) {
        return NULL;
    }
    describe(page, cpus);
    atomic_store_explicit(&page->state, TC_SOFTPMU_DISARMED, memory_order_relaxed);
    atomic_store_explicit(&page->magic, TC_SOFTPMU_MAGIC, memory_order_release);
    return page;
}

static void add(_Atomic uint64_t *counter, uint64_t amount)
{
    uint64_t now = atomic_load_explicit(counter, memory_order_relaxed);
    atomic_store_explicit(counter, now + amount, memory_order_relaxed);
}

void page_writer_advance(struct tc_softpmu_page *page, uint32_t cpu)
{
    for (int i = 0; i < TC_SOFTPMU_MODES; i++) {
        enum tc_softpmu_mode mode = (enum tc_softpmu_mode)i;
        _Atomic uint64_t *counters = tc_softpmu_page_cpu(page, cpu)->counters + (size_t)i * SLOTS;
        add(&counters[SLOT_INSTRUCTIONS], page_writer_step(WRITER_INSTRUCTIONS, cpu, mode, 0));
        add(&counters[SLOT_FETCH_MISSES], page_writer_step(WRITER_FETCH_MISSES, cpu, mode, 0));
        for (uint32_t variant = 0; variant < WRITER_VARIANTS; variant++) {
            add(&counters[SLOT_L2_MISSES + variant],
                page_writer_step(WRITER_L2_MISSES, cpu, mode, variant));
        }
    }
}

static void change_idle(struct tc_softpmu_cpu *block, uint64_t slept_ns, uint64_t since_ns)
{
    add(&block->idle_sequence, 1);
    atomic_thread_fence(memory_order_release);
    add(&block->idle_ns, slept_ns);
    atomic_store_explicit(&block->idle_since_ns, since_ns, memory_order_relaxed);
    uint64_t sequence = atomic_load_explicit(&block->idle_sequence, memory_order_relaxed);
    atomic_store_explicit(&block->idle_sequence, sequence + 1, memory_order_release);
}

void page_writer_sleep(struct tc_softpmu_page *page, uint32_t cpu, uint64_t now_ns)
{
    change_idle(tc_softpmu_page_cpu(page, cpu), 0, now_ns);
}

void page_writer_wake(struct tc_softpmu_page *page, uint32_t cpu, uint64_t now_ns)
{
    struct tc_softpmu_cpu *block = tc_softpmu_page_cpu(page, cpu);
    uint64_t since_ns = atomic_load_explicit(&block->idle_since_ns, memory_order_relaxed);
    change_idle(block, now_ns - since_ns, 0);
}
