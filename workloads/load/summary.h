/* What a load run tells at its end, as text or as one JSON document. */
#ifndef TC_LOAD_SUMMARY_H
#define TC_LOAD_SUMMARY_H

#include <stdint.h>
#include <stdio.h>

#include "workloads/common/page.h"
#include "workloads/load/options.h"

struct tc_load_summary {
    const struct tc_load_options *options;
    const struct tc_page *page;
    uint64_t elapsed_ns;
    uint64_t user_ns; /* CPU time of this process */
    uint64_t system_ns;
    uint64_t unstarted; /* open loop: arrivals due that no connection was free for */
};

/* Writes it to file. Errors: -ENOMEM, errno of the writes, -EINVAL (histograms). */
TC_MUST_CHECK int tc_load_summary_text(const struct tc_load_summary *summary, FILE *file,
                                       struct tc_error *err);
TC_MUST_CHECK int tc_load_summary_json(const struct tc_load_summary *summary, FILE *file,
                                       struct tc_error *err);

#endif
