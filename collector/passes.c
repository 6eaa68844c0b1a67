#include "collector/passes.h"

#include <errno.h>
#include <string.h>

static bool same(const struct tc_event *a, const struct tc_event *b)
{
    return strcmp(a->name, b->name) == 0 && a->mode == b->mode;
}

static bool holds(const struct tc_pass *pass, const struct tc_event *event)
{
    for (size_t i = 0; i < pass->count; i++) {
        if (same(&pass->events[i], event)) {
            return true;
        }
    }
    return false;
}

struct splitter {
    const struct tc_event *anchors;
    tc_passes_fits fits;
    void *context;
};

static bool takes_counter(const struct splitter *splitter, const struct tc_event *event)
{
    return event->known && event->hardware && splitter->fits(event, 1, splitter->context);
}

/* Whether the pass still fits with the `more` events (at most two) beside its own. */
static bool fits_beside(const struct splitter *splitter, const struct tc_pass *pass,
                        const struct tc_event *more, size_t more_count)
{
    struct tc_event trial[TC_EVENTS_MAX + 2];
    size_t count = 0;
    for (size_t i = 0; i < pass->count; i++) {
        if (takes_counter(splitter, &pass->events[i])) {
            trial[count++] = pass->events[i];
        }
    }
    memcpy(&trial[count], more, more_count * sizeof(*more));
    return splitter->fits(trial, count + more_count, splitter->context);
}

static bool has_counted(const struct splitter *splitter, const struct tc_pass *pass)
{
    for (size_t i = 0; i < pass->count; i++) {
        if (takes_counter(splitter, &pass->events[i])) {
            return true;
        }
    }
    return false;
}

/* Puts a counter-taking event into the pass, with the anchor where it is the pass's first; false
 * where the pass is full. */
static bool put_counted(const struct splitter *splitter, struct tc_pass *pass,
                        const struct tc_event *event)
{
    const struct tc_event *anchor = &splitter->anchors[event->mode];
    struct tc_event more[2] = {*anchor, *event};
    bool first = !has_counted(splitter, pass);
    bool anchored = first && !same(anchor, event) && !holds(pass, anchor) &&
                    takes_counter(splitter, anchor) && fits_beside(splitter, pass, more, 2);
    if (!first && !fits_beside(splitter, pass, event, 1)) {
        return false;
    }
    if (anchored) {
        pass->events[pass->count++] = *anchor;
    }
    pass->events[pass->count++] = *event;
    return true;
}

int tc_passes_split(const struct tc_event *set, size_t count,
                    const struct tc_event anchors[TC_MODE_BOTH + 1], tc_passes_fits fits,
                    void *context, struct tc_pass *passes, size_t *passes_count,
                    struct tc_error *err)
{
    const struct splitter splitter = {anchors, fits, context};
    size_t first = *passes_count;
    for (size_t i = 0; i < count; i++) {
        if (*passes_count > first && holds(&passes[*passes_count - 1], &set[i])) {
            continue; /* came in as the anchor */
        }
        bool counted = takes_counter(&splitter, &set[i]);
        bool full = *passes_count > first && passes[*passes_count - 1].count + 2 > TC_EVENTS_MAX;
        if (*passes_count > first && !full &&
            (!counted || put_counted(&splitter, &passes[*passes_count - 1], &set[i]))) {
            if (!counted) {
                struct tc_pass *last = &passes[*passes_count - 1];
                last->events[last->count++] = set[i];
            }
            continue;
        }
        if (*passes_count == TC_PASSES_MAX) {
            return tc_error_set(err, E2BIG, "--events: more than %d passes are needed",
                                TC_PASSES_MAX);
        }
        struct tc_pass *fresh = &passes[(*passes_count)++];
        fresh->count = 0;
        i--; /* the event goes into the fresh pass */
    }
    return 0;
}
