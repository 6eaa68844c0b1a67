/* Options of tlscost-collect, checked. */
#ifndef TC_COLLECTOR_OPTIONS_H
#define TC_COLLECTOR_OPTIONS_H

#include <stdbool.h>

#include "collector/session.h"

#define TC_OPTIONS_SETS_MAX 32

struct tc_options {
    struct tc_session_options session;
    struct tc_event sets[TC_OPTIONS_SETS_MAX][TC_EVENTS_MAX];
    size_t sets_counts[TC_OPTIONS_SETS_MAX];
    char **argv; /* as given: parsing cuts the other at the commands */
    const char *header_path;
    json_t *header;
    const char *server_cpus;
    const char *load_cpus;
    const char *collector_cpus;
    const char *cpus;
    const char *network;
    const char *numa;
    uint64_t simulated_cpus;
    uint64_t duration_ns;
    bool probe;
    bool sample_only;
};

/* Fills *options, which must be zeroed. Returns 0, or the exit code after saying on standard error
 * what is wrong; --help and --version end the program. tc_options_close() in every case. */
TC_MUST_CHECK int tc_options_parse(struct tc_options *options, int argc, char **argv);
void tc_options_close(struct tc_options *options);

#endif
