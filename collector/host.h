/* What of this machine, and of this user's limits, decides how well it can be measured. */
#ifndef TC_COLLECTOR_HOST_H
#define TC_COLLECTOR_HOST_H

#include <jansson.h>

/* Facts without a judgement, docs/doctor.md; what cannot be read is null. Keeps `cpu` busy for half
 * a second to see what a hypervisor takes of it. NULL: no memory. */
json_t *tc_host_build(int cpu);

#endif
