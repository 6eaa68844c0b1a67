#include "collector/events.h"

#include <errno.h>
#include <perfmon/pfmlib_perf_event.h>
#include <stdio.h>
#include <string.h>

/* Page faults are told apart by the mode they came from; the other software events happen in the
 * kernel or are clocks, so a mode would make them read 0 or the same. */
const char tc_events_default[] =
    "instructions:u,instructions:k,cycles:u,cycles:k,cpu-clock,context-switches,cpu-migrations,"
    "page-faults:u,page-faults:k,minor-faults,major-faults";

const char *tc_mode_name(enum tc_mode mode)
{
    static const char *const names[] = {
        [TC_MODE_USER] = "u", [TC_MODE_KERNEL] = "k", [TC_MODE_BOTH] = "uk"};
    return names[mode];
}

/* Takes the mode off the end of "NAME:MODE"; what is no mode belongs to the name. */
static size_t split_mode(const char *text, size_t length, enum tc_mode *mode)
{
    *mode = TC_MODE_BOTH;
    const char *colon = memrchr(text, ':', length);
    if (colon == NULL) {
        return length;
    }
    size_t suffix = length - (size_t)(colon - text) - 1;
    if (suffix == 1 && (colon[1] == 'u' || colon[1] == 'k')) {
        *mode = colon[1] == 'u' ? TC_MODE_USER : TC_MODE_KERNEL;
    } else if (suffix != 2 ||
               (memcmp(colon + 1, "uk", 2) != 0 && memcmp(colon + 1, "ku", 2) != 0)) {
        return length;
    }
    return (size_t)(colon - text);
}

static int parse_one(const char *text, size_t length, struct tc_event *event, struct tc_error *err)
{
    memset(event, 0, sizeof(*event));
    size_t name_length = split_mode(text, length, &event->mode);
    if (name_length == 0 || name_length >= sizeof(event->name)) {
        return tc_error_set(err, EINVAL,
                            "--events: '%.*s': expected an event name of 1 to %d characters, as in "
                            "instructions:u",
                            (int)(length > 120 ? 120 : length), text, TC_EVENT_NAME_MAX - 1);
    }
    memcpy(event->name, text, name_length);
    return 0;
}

static bool listed(const struct tc_event *events, size_t count, const struct tc_event *event)
{
    for (size_t i = 0; i < count; i++) {
        if (strcmp(events[i].name, event->name) == 0 && events[i].mode == event->mode) {
            return true;
        }
    }
    return false;
}

int tc_events_parse(const char *text, struct tc_event *events, size_t *count, struct tc_error *err)
{
    *count = 0;
    for (;;) {
        size_t length = strcspn(text, ",");
        if (*count == TC_EVENTS_MAX) {
            return tc_error_set(err, EINVAL, "--events: more than %d events in one set",
                                TC_EVENTS_MAX);
        }
        int rc = parse_one(text, length, &events[*count], err);
        if (rc != 0) {
            return rc;
        }
        if (listed(events, *count, &events[*count])) {
            return tc_error_set(err, EINVAL, "--events: '%s:%s' is there twice in one set",
                                events[*count].name, tc_mode_name(events[*count].mode));
        }
        (*count)++;
        if (text[length] == '\0') {
            return 0;
        }
        text += length + 1;
    }
}

/* A software event whose mode would silently make it 0 (it happens in the kernel) or change
 * nothing (a clock). */
static bool mode_is_void(const struct tc_event *event)
{
    if (event->attr.type != PERF_TYPE_SOFTWARE || event->mode == TC_MODE_BOTH) {
        return false;
    }
    switch (event->attr.config) {
    case PERF_COUNT_SW_CPU_CLOCK:
    case PERF_COUNT_SW_TASK_CLOCK:
    case PERF_COUNT_SW_CONTEXT_SWITCHES:
    case PERF_COUNT_SW_CPU_MIGRATIONS:
    case PERF_COUNT_SW_CGROUP_SWITCHES:
        return true;
    default:
        return false;
    }
}

int tc_event_encode(struct tc_event *event, struct tc_error *err)
{
    int rc = pfm_initialize(); /* idempotent */
    if (rc != PFM_SUCCESS) {
        return tc_error_set(err, ENOENT, "libpfm4 does not start: %s", pfm_strerror(rc));
    }
    memset(&event->attr, 0, sizeof(event->attr));
    event->attr.size = sizeof(event->attr);
    pfm_perf_encode_arg_t arg = {.attr = &event->attr, .size = sizeof(arg)};
    int levels = ((event->mode & TC_MODE_USER) != 0 ? PFM_PLM3 : 0) |
                 ((event->mode & TC_MODE_KERNEL) != 0 ? PFM_PLM0 : 0);
    rc = pfm_get_os_event_encoding(event->name, levels, PFM_OS_PERF_EVENT, &arg);
    if (rc != PFM_SUCCESS) {
        return tc_error_set(err, ENOENT,
                            "event '%s': %s; `tlscost events` lists what can be named here",
                            event->name, pfm_strerror(rc));
    }
    if (mode_is_void(event)) {
        return tc_error_set(err, EINVAL,
                            "event '%s:%s': this software event has no modes and would read 0; "
                            "write '%s'",
                            event->name, tc_mode_name(event->mode), event->name);
    }
    event->hardware =
        event->attr.type != PERF_TYPE_SOFTWARE && event->attr.type != PERF_TYPE_TRACEPOINT;
    event->known = true;
    return 0;
}
