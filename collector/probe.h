/* What each source can count on this machine, as JSON. */
#ifndef TC_COLLECTOR_PROBE_H
#define TC_COLLECTOR_PROBE_H

#include <jansson.h>

/* {"sources": [{name, available, scope, reason, events: [{event, available, modes: {MODE: {status,
 * reason}}}]}], "pmu": {present, counters, reason}}; the default events are tried on `cpu`.
 * NULL: no memory. */
json_t *tc_probe_build(int cpu);

#endif
