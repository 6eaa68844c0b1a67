/* What each source can count on this machine, as JSON. */
#ifndef TC_COLLECTOR_PROBE_H
#define TC_COLLECTOR_PROBE_H

#include <jansson.h>

#include "collector/session.h"

/* {schema, program, sources: [{name, available, scope, reason, events: [{event, available, modes:
 * {MODE: {status, reason}}}]}], pmu: {present, counters, reason, kinds, devices}, host,
 * provenance}: docs/doctor.md. The options' events are tried on `cpu`, each alone. NULL: no memory.
 */
json_t *tc_probe_build(int cpu, const struct tc_session_options *options);

#endif
