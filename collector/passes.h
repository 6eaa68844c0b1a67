/* Splitting an event set into passes, so that the kernel never has to multiplex. */
#ifndef TC_COLLECTOR_PASSES_H
#define TC_COLLECTOR_PASSES_H

#include <stdbool.h>
#include <stddef.h>

#include "collector/events.h"

#define TC_PASSES_MAX 64

struct tc_pass {
    struct tc_event events[TC_EVENTS_MAX];
    size_t count;
};

/* Whether these hardware events can all be counted at the same time. */
typedef bool (*tc_passes_fits)(const struct tc_event *events, size_t count, void *context);

/* Appends `set` to passes as one pass or, where its hardware events do not fit together, several,
 * each with the anchor. Events that take no counter, and those that do not fit even alone (opening
 * them will say why), stay in the pass at hand. Errors: -E2BIG (more than TC_PASSES_MAX). */
TC_MUST_CHECK int tc_passes_split(const struct tc_event *set, size_t count,
                                  const struct tc_event anchors[TC_MODE_BOTH + 1],
                                  tc_passes_fits fits, void *context, struct tc_pass *passes,
                                  size_t *passes_count, struct tc_error *err);

#endif
