/* Windows to the record's lines (docs/record-format.md). */
#ifndef TC_COLLECTOR_LINES_H
#define TC_COLLECTOR_LINES_H

#include <jansson.h>

#include "collector/window.h"

struct tc_line {
    const char *type; /* "idle", "window" or "sample" */
    size_t pass;
    size_t index;
    const struct tc_window *window;
    const struct tc_window *idle; /* the pass's idle window; NULL in idle and sample lines */
    const struct tc_meter *meter;
    const struct tc_cpus *cpus;
    bool overlap;    /* server and load share CPUs: no counts */
    uint64_t tsc_hz; /* 0: unknown */
    bool server_rss_known;
    uint64_t server_rss_bytes;
    json_t *notes; /* borrowed; array of texts */
};

/* A window with a load has its transactions, errors and latencies. NULL: no memory. */
json_t *tc_line_build(const struct tc_line *line);

#endif
