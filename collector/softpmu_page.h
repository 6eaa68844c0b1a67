/* SPDX-License-Identifier: MIT
 *
 * The counters of a simulated machine, in a file that its QEMU plugin and a reader both map.
 *
 * The page describes itself, so that a reader needs no machine file: an event is a sum of weights
 * times raw counters ("slots"), and the event table says which. Slots [0, shared_slots) are the
 * same in every variant of the machine; each variant then has variant_slots of its own. Each CPU
 * has its slots twice, for user and for kernel mode.
 *
 * The plugin creates the file's contents: it sizes the file, writes the header, and stores magic
 * last (release); a reader that finds the file shorter than the header or magic 0 tries again
 * later. Afterwards only `state`, `message` and the CPUs' blocks change. Of the plugin's side the
 * CPU's own thread writes a block, with relaxed stores of whole words; to some slots ([snoop] in
 * softpmu/slots.h), which that thread never stores to, the other CPUs' threads add atomically. A
 * reader writes `wanted` and nothing else. Where the plugin cannot even begin, it leaves a page
 * without CPUs that says why. Counters never go down and are not reset by arming: differences of
 * two readings count. */
#ifndef TC_COLLECTOR_SOFTPMU_PAGE_H
#define TC_COLLECTOR_SOFTPMU_PAGE_H

#include <math.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define TC_SOFTPMU_MAGIC   UINT64_C(0x31756d7074666f73) /* "softpmu1", little-endian */
#define TC_SOFTPMU_VERSION 1

#define TC_SOFTPMU_NAME_MAX     48
#define TC_SOFTPMU_UNIT_MAX     16
#define TC_SOFTPMU_MESSAGE_MAX  512
#define TC_SOFTPMU_VARIANTS_MAX 8
#define TC_SOFTPMU_EVENTS_MAX   96
#define TC_SOFTPMU_TERMS_MAX    24
#define TC_SOFTPMU_LINE_BYTES   64 /* alignment that keeps CPUs' blocks apart */

enum tc_softpmu_mode { TC_SOFTPMU_USER, TC_SOFTPMU_KERNEL, TC_SOFTPMU_MODES };

enum tc_softpmu_origin { TC_SOFTPMU_COUNTED, TC_SOFTPMU_SIMULATED, TC_SOFTPMU_MODELLED };

/* What the reader wants. */
enum tc_softpmu_wanted { TC_SOFTPMU_DISARM, TC_SOFTPMU_ARM };

enum tc_softpmu_state {
    TC_SOFTPMU_BOOTING,  /* no CPU has run yet */
    TC_SOFTPMU_DISARMED, /* runs without instrumentation; nothing is counted */
    TC_SOFTPMU_ARMED,    /* counts */
    TC_SOFTPMU_FAILED,   /* counts are void, or there are none; `message` says why */
    TC_SOFTPMU_ENDED     /* QEMU has ended in order: the counts are complete */
};

/* weight x slot. A slot >= shared_slots is given as of variant 0. */
struct tc_softpmu_term {
    double weight;
    uint32_t slot;
    uint32_t reserved;
};

struct tc_softpmu_event {
    char name[TC_SOFTPMU_NAME_MAX];
    char unit[TC_SOFTPMU_UNIT_MAX];
    uint32_t origin; /* enum tc_softpmu_origin */
    uint32_t varies; /* 1: has a term of a variant's own slots */
    uint32_t terms_count;
    uint32_t reserved;
    struct tc_softpmu_term terms[TC_SOFTPMU_TERMS_MAX];
};

/* One CPU's block; its 2 x slots counters follow: slot s of mode m is counters[m * slots + s]. */
struct tc_softpmu_cpu {
    _Alignas(TC_SOFTPMU_LINE_BYTES) _Atomic uint64_t idle_sequence; /* odd: being changed */
    _Atomic uint64_t idle_ns;           /* halted so far, up to the last time it woke up */
    _Atomic uint64_t idle_since_ns;     /* CLOCK_MONOTONIC; 0: runs */
    _Atomic uint64_t addresses_checked; /* with check=addresses: data addresses compared ... */
    _Atomic uint64_t addresses_wrong;   /* ... that differed from QEMU's own answer */
    _Atomic uint64_t addresses_device;  /* accesses to device memory: not cached, not modelled */
    _Atomic uint64_t addresses_unknown; /* accesses without a physical address: not modelled */
    _Atomic uint64_t repeats;           /* iterations of string instructions beyond the first */
    _Atomic uint64_t executed; /* with count=inline or callback: instructions, repeats too */
    _Alignas(TC_SOFTPMU_LINE_BYTES) _Atomic uint64_t counters[];
};

struct tc_softpmu_page {
    _Atomic uint64_t magic; /* stored last */
    uint32_t version;       /* TC_SOFTPMU_VERSION */
    uint32_t cpus;
    uint64_t total_bytes;
    uint64_t cpus_offset; /* bytes from the start of the file, multiple of TC_SOFTPMU_LINE_BYTES */
    uint64_t cpu_stride;  /* bytes from one CPU's block to the next */
    uint32_t slots;       /* per mode: shared_slots + variants x variant_slots */
    uint32_t shared_slots;
    uint32_t variant_slots;
    uint32_t variants;
    uint32_t events;
    uint32_t whole_system; /* 1: kernel mode is counted, too; 0: one program, user mode only */
    uint64_t clock_hz;     /* of the simulated CPUs */
    uint64_t bus_clock_hz;
    int64_t pid;                     /* QEMU's */
    _Atomic uint32_t wanted;         /* enum tc_softpmu_wanted */
    _Atomic uint32_t state;          /* enum tc_softpmu_state */
    int32_t error;                   /* errno of TC_SOFTPMU_FAILED */
    _Atomic uint64_t blocks_unknown; /* translated code without a place in the guest's memory */
    char message[TC_SOFTPMU_MESSAGE_MAX]; /* complete once state is TC_SOFTPMU_FAILED */
    char machine[TC_SOFTPMU_NAME_MAX];
    char variant_names[TC_SOFTPMU_VARIANTS_MAX][TC_SOFTPMU_NAME_MAX];
    struct tc_softpmu_event event[TC_SOFTPMU_EVENTS_MAX];
};

static inline struct tc_softpmu_cpu *tc_softpmu_page_cpu(const struct tc_softpmu_page *page,
                                                         uint32_t cpu)
{
    return (void *)((char *)page + page->cpus_offset + page->cpu_stride * cpu);
}

/* An event's value so far; for one that does not vary, any variant gives the same. Cumulative. */
static inline uint64_t tc_softpmu_page_value(const struct tc_softpmu_page *page, uint32_t event,
                                             uint32_t cpu, enum tc_softpmu_mode mode,
                                             uint32_t variant)
{
    const struct tc_softpmu_event *e = &page->event[event];
    const _Atomic uint64_t *counters = tc_softpmu_page_cpu(page, cpu)->counters;
    uint64_t own = (uint64_t)variant * page->variant_slots;
    double sum = 0;
    counters += (uint64_t)mode * page->slots;
    for (uint32_t i = 0; i < e->terms_count; i++) {
        uint64_t slot = e->terms[i].slot;
        slot += slot >= page->shared_slots ? own : 0;
        sum += e->terms[i].weight *
               (double)atomic_load_explicit(&counters[slot], memory_order_relaxed);
    }
    return sum > 0 ? (uint64_t)llround(sum) : 0;
}

/* Times that a reader looks again while the CPU writes: a few stores, unless it died there. */
#define TC_SOFTPMU_LOOKS 100000000

/* Time [ns] that the CPU has been halted so far. now_ns: CLOCK_MONOTONIC. False: the writer died
 * in the middle of writing. */
static inline bool tc_softpmu_page_idle_ns(const struct tc_softpmu_page *page, uint32_t cpu,
                                           uint64_t now_ns, uint64_t *total_ns)
{
    const struct tc_softpmu_cpu *block = tc_softpmu_page_cpu(page, cpu);
    for (int look = 0; look < TC_SOFTPMU_LOOKS; look++) {
        uint64_t before = atomic_load_explicit(&block->idle_sequence, memory_order_acquire);
        uint64_t idle_ns = atomic_load_explicit(&block->idle_ns, memory_order_relaxed);
        uint64_t since_ns = atomic_load_explicit(&block->idle_since_ns, memory_order_relaxed);
        atomic_thread_fence(memory_order_acquire);
        uint64_t after = atomic_load_explicit(&block->idle_sequence, memory_order_relaxed);
        if (before == after && before % 2 == 0) {
            *total_ns = idle_ns + (since_ns != 0 && now_ns > since_ns ? now_ns - since_ns : 0);
            return true;
        }
    }
    return false;
}

#endif
