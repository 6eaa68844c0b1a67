/* Facts about the machine for a record's header. */
#ifndef TC_COLLECTOR_PROVENANCE_H
#define TC_COLLECTOR_PROVENANCE_H

#include <jansson.h>
#include <stdint.h>

/* Frequency of the time stamp counter [Hz], 0 where the processor has none, and where the figure
 * comes from (static text). May take 50 ms, where it has to be measured. */
uint64_t tc_provenance_tsc_hz(const char **how);

/* The header's `provenance`; what cannot be read is null. NULL: no memory. */
json_t *tc_provenance_build(uint64_t tsc_hz, const char *tsc_how);

#endif
