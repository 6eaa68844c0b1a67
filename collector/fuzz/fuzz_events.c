/* --events on any text: refused, or events that, written out again, parse to the same. */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collector/events.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t length);

static void check(bool holds)
{
    if (!holds) {
        abort();
    }
}

static void check_round_trip(const struct tc_event *events, size_t count)
{
    static char text[TC_EVENTS_MAX * (TC_EVENT_NAME_MAX + 4)];
    static struct tc_event again[TC_EVENTS_MAX];
    size_t used = 0;
    size_t again_count;
    for (size_t i = 0; i < count; i++) {
        used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%s:%s", i > 0 ? "," : "",
                                 events[i].name, tc_mode_name(events[i].mode));
    }
    check(tc_events_parse(text, again, &again_count, NULL) == 0);
    check(again_count == count);
    for (size_t i = 0; i < count; i++) {
        check(strcmp(events[i].name, again[i].name) == 0 && events[i].mode == again[i].mode);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t length)
{
    static struct tc_event events[TC_EVENTS_MAX];
    struct tc_error err;
    size_t count;
    char *text = malloc(length + 1);
    check(text != NULL);
    memcpy(text, data, length);
    text[length] = '\0';
    int rc = tc_events_parse(text, events, &count, &err);
    check(rc == 0 || rc == -EINVAL);
    if (rc == 0) {
        check(count > 0 && count <= TC_EVENTS_MAX);
        check_round_trip(events, count);
    }
    free(text);
    return 0;
}
