/* The writer's side of a simulated machine's page, with counts that can be worked out: what
 * QEMU's plugin does in tests of who reads. The machine has two L2 variants and four events. */
#ifndef TC_COLLECTOR_TESTS_PAGE_WRITER_H
#define TC_COLLECTOR_TESTS_PAGE_WRITER_H

#include "collector/softpmu_page.h"

enum { WRITER_INSTRUCTIONS, WRITER_FETCH_MISSES, WRITER_L2_MISSES, WRITER_CYCLES, WRITER_EVENTS };

#define WRITER_VARIANTS 2
/* Of WRITER_CYCLES = base x instructions + penalty x L2 misses of the variant. */
#define WRITER_BASE    0.5
#define WRITER_PENALTY 40

/* What a step adds to an event other than cycles. */
static inline uint64_t page_writer_step(int event, uint32_t cpu, enum tc_softpmu_mode mode,
                                        uint32_t variant)
{
    uint64_t of_event = event == WRITER_INSTRUCTIONS ? 1000 : event == WRITER_FETCH_MISSES ? 20 : 3;
    return of_event * (cpu + 1) * ((uint64_t)mode + 1) *
           (event == WRITER_L2_MISSES ? variant + 1 : 1);
}

/* Sizes the file and maps a complete page; NULL: errno says why. */
struct tc_softpmu_page *page_writer_make(int fd, uint32_t cpus);

/* One step of one CPU, in both modes. */
void page_writer_advance(struct tc_softpmu_page *page, uint32_t cpu);

void page_writer_sleep(struct tc_softpmu_page *page, uint32_t cpu, uint64_t now_ns);
void page_writer_wake(struct tc_softpmu_page *page, uint32_t cpu, uint64_t now_ns);

#endif
