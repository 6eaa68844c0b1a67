/* The command line of tlscost-load. */
#ifndef TC_LOAD_OPTIONS_H
#define TC_LOAD_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "workloads/load/pacing.h"
#include "workloads/load/response.h"

#define TC_LOAD_MOST_THREADS     1024
#define TC_LOAD_MOST_CONNECTIONS 1000000

struct tc_load_options {
    const char *url;
    const char *profile_path; /* NULL: this OpenSSL's defaults, and nothing asserted */
    const char *page_path;    /* NULL: a page of its own */
    uint32_t threads;         /* one per load CPU */
    int cpus[TC_LOAD_MOST_THREADS];
    uint32_t connections; /* over all threads */
    double rate;          /* of the open loop, per second; 0: closed loop */
    enum tc_arrivals arrivals;
    double shape;
    uint32_t seed;
    uint64_t duration_ns;  /* 0: until a signal or the last transaction */
    uint64_t transactions; /* 0: no limit */
    bool keepalive;
    double resumption; /* fraction of the handshakes to be resumed */
    struct tc_response_rules rules;
    uint64_t timeout_ns;
    uint64_t drain_timeout_ns;
    bool json;
};

/* Fills options; on a bad one says which and why on standard error and exits 2; where the CPUs are
 * not there exits 3. --help and --version exit 0. */
void tc_load_options_parse(struct tc_load_options *options, int argc, char **argv);

#endif
