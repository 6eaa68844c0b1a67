/* Any text as a machine file: refused in words, or a machine that runs. */
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "collector/softpmu/core.h"
#include "collector/softpmu/machine.h"
#include "collector/softpmu/timing.h"

/* More than this is a matter of memory, not of right and wrong. */
#define BYTES_MAX (UINT64_C(8) << 20)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t length);

static void check(bool holds)
{
    if (!holds) {
        abort();
    }
}

static void run(const struct tc_machine *machine)
{
    struct tc_hierarchy *hierarchy;
    static struct tc_softpmu_page page;
    uint32_t slots = tc_machine_slots(machine);
    _Atomic uint64_t *counters = calloc((size_t)2 * TC_SOFTPMU_MODES * slots, sizeof(*counters));
    check(counters != NULL);
    check(tc_hierarchy_new(machine, 2, &hierarchy, NULL) == 0);
    tc_timing_describe(machine, &page);
    check(page.events > 0 && page.events <= TC_SOFTPMU_EVENTS_MAX);
    for (uint32_t event = 0; event < page.events; event++) {
        check(page.event[event].terms_count <= TC_SOFTPMU_TERMS_MAX);
    }
    for (uint32_t cpu = 0; cpu < 2; cpu++) {
        tc_core_bind(hierarchy, cpu, counters + (size_t)cpu * TC_SOFTPMU_MODES * slots);
    }
    for (uint64_t i = 0; i < 64; i++) {
        struct tc_core *core = tc_hierarchy_core(hierarchy, i & 1);
        struct tc_branch branch = {.address = i * 7, .kind = (uint8_t)(i % TC_BRANCH_KINDS)};
        tc_core_fetch(core, i * machine->l1i.bytes);
        tc_core_store(core, i * machine->l1d.bytes / machine->l1d.ways, 16);
        tc_core_load(core, i * machine->l1d.line_bytes, 1);
        tc_core_branch(core, &branch, i & 2, i);
    }
    tc_hierarchy_free(hierarchy);
    free(counters);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t length)
{
    struct tc_machine machine;
    struct tc_error err = {""};
    int rc = tc_machine_parse((const char *)data, length, "fuzz", NULL, &machine, &err);
    check(rc == 0 || (rc == -EINVAL && err.message[0] != '\0'));
    if (rc != 0) {
        return 0;
    }
    uint64_t bytes = machine.l1i.bytes + machine.l1d.bytes + machine.llc.bytes +
                     (uint64_t)machine.predictor.btb_entries * 64;
    for (uint32_t v = 0; v < machine.variants; v++) {
        bytes += machine.variant[v].l2_bytes;
    }
    if (bytes <= BYTES_MAX) {
        run(&machine);
    }
    return 0;
}
