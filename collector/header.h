/* The record's first line. */
#ifndef TC_COLLECTOR_HEADER_H
#define TC_COLLECTOR_HEADER_H

#include "collector/session.h"
#include "collector/softpmu_page.h"
#include "collector/source.h"

struct tc_header {
    const struct tc_session_options *options;
    const struct tc_network *network;      /* NULL: nothing was connected */
    const struct tc_softpmu_page *machine; /* NULL: this machine is what is measured */
    struct tc_counters *const *counters;   /* one per pass */
    size_t counters_count;
    const struct tc_counters *system; /* of this machine or of the simulated one */
    uint64_t window_ns;               /* as used */
    uint64_t idle_resolution_ns;
    uint64_t tsc_hz;
    const char *tsc_how;
};

/* NULL: no memory. */
json_t *tc_header_build(const struct tc_header *header);

#endif
