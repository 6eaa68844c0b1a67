/* Event names to encodings; the only user of libpfm4. */
#ifndef TC_COLLECTOR_EVENTS_H
#define TC_COLLECTOR_EVENTS_H

#include <linux/perf_event.h>
#include <stdbool.h>
#include <stddef.h>

#include "workloads/common/error.h"

#define TC_EVENT_NAME_MAX 160 /* an event and four long masks */
#define TC_EVENTS_MAX     64  /* of one set */

enum tc_mode { TC_MODE_USER = 1, TC_MODE_KERNEL = 2, TC_MODE_BOTH = 3 };

struct tc_event {
    char name[TC_EVENT_NAME_MAX]; /* as the user wrote it, without the mode */
    enum tc_mode mode;
    bool hardware; /* takes one of the PMU's counters */
    bool known;    /* attr is valid: libpfm4 knows the name on this machine */
    struct perf_event_attr attr;
};

/* "u", "k" or "uk". */
const char *tc_mode_name(enum tc_mode mode);

/* Parses "NAME[:MASK...][:u|:k|:uk],..." without looking names up. events: TC_EVENTS_MAX of them.
 * Errors: -EINVAL (empty or too long a name, too many events, an event twice). */
TC_MUST_CHECK int tc_events_parse(const char *text, struct tc_event *events, size_t *count,
                                  struct tc_error *err);

/* Fills attr's type, config and privilege fields by libpfm4, and hardware and known. Errors:
 * -ENOENT (no such event on this machine's PMUs), -EINVAL (a mode in which it always reads 0). */
TC_MUST_CHECK int tc_event_encode(struct tc_event *event, struct tc_error *err);

/* The sets counted where the user names none. */
extern const char tc_events_default[];

#endif
