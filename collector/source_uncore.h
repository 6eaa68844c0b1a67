/* Memory traffic, counted by the memory controllers of the whole machine (collector/uncore.h). */
#ifndef TC_COLLECTOR_SOURCE_UNCORE_H
#define TC_COLLECTOR_SOURCE_UNCORE_H

#include "collector/source.h"

/* As the source's open(), of a machine whose files are in these folders: TC_UNCORE_PMUS and
 * TC_UNCORE_CPUS, or what a test has there. Slots: one a counter, or one a direction where there is
 * none, with the reason. They count from here on. */
TC_MUST_CHECK int tc_uncore_open(struct tc_counters **counters, const char *pmus, const char *cpus,
                                 struct tc_error *err);

#endif
