/* Counts through PAPI: its presets (PAPI_TOT_INS, PAPI_L1_DCM ...) and the names of libpfm4. The
 * only user of PAPI. PAPI tells no time that a counter ran: it is 0 here, and sets that would be
 * multiplexed are not made.
 *
 * An event set of PAPI's has one mode (user, kernel, both). A preset that is one event of the
 * processor is therefore added by that event's name, to which libpfm4 lets a mode be written; what
 * PAPI computes of several takes the set's. */
#include <errno.h>
#include <papi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collector/core_pmus.h"
#include "collector/source_perf.h"

/* What one event set counts. */
struct place {
    enum tc_scope scope;
    int cpu;
    pid_t pid; /* of TC_SCOPE_PROCESS; 0: this process */
};

struct set {
    int id;     /* PAPI_NULL: there is none */
    int failed; /* PAPI's reason then */
    size_t count;
    size_t slots[TC_EVENTS_MAX]; /* of its events, in PAPI's order */
};

struct papi_counters {
    struct tc_counters base;
    struct set *sets; /* a CPU's each, or the process tree's */
    size_t sets_count;
};

static const char default_events[] = "PAPI_TOT_INS:u,PAPI_TOT_INS:k,PAPI_TOT_CYC:u,PAPI_TOT_CYC:k,"
                                     "PAPI_L1_DCM:u,PAPI_L1_DCM:k,PAPI_BR_MSP:u,PAPI_BR_MSP:k";

/* The set that is attached to a process tree. There can be one: PAPI opens a set's counters anew
 * where another one of the same process was used in between, and a counter opened then is not
 * inherited by what runs already: it would read 0. */
static const struct set *of_the_tree;

/* Starts PAPI at the first call. Returns the component of the processor's counters, or -ENOENT. */
static int begin(struct tc_error *err)
{
    static int component;
    static struct tc_error why;
    if (component == 0) {
        (void)PAPI_set_debug(PAPI_QUIET); /* else it prints */
        int rc = PAPI_library_init(PAPI_VER_CURRENT);
        int index = rc == PAPI_VER_CURRENT ? PAPI_get_component_index("perf_event") : rc;
        const PAPI_component_info_t *info = index < 0 ? NULL : PAPI_get_component_info(index);
        if (info == NULL) {
            component =
                tc_error_set(&why, ENOENT, "PAPI does not start: %s; count with --source perf",
                             PAPI_strerror(index < 0 ? index : PAPI_ENOCMP));
        } else if (info->disabled == PAPI_OK || info->disabled == PAPI_EDELAY_INIT) {
            component = index + 1; /* 0 is not yet tried */
        } else {
            component = tc_error_set(&why, ENOENT,
                                     "PAPI counts nothing here: %s; count with --source perf, or "
                                     "`sysctl kernel.perf_event_paranoid=2` (or less)",
                                     info->disabled_reason);
        }
    }
    return component > 0 ? component - 1 : tc_error_set(err, ENOENT, "%s", why.message);
}

static int unknown(const struct tc_event *event, struct tc_error *err)
{
    return tc_error_set(
        err, ENOENT,
        "PAPI has no %s on this processor: `papi_avail -a` and `papi_native_avail` list "
        "what it has; presets it lacks can be given in a file (PAPI_CSV_EVENT_FILE)",
        event->name);
}

/* Refuses a native event that would read 0; names that libpfm4 does not know are PAPI's to judge.
 */
static int check_native(const char *name, int cpu, struct tc_error *err)
{
    struct tc_event native = {.mode = TC_MODE_USER};
    (void)snprintf(native.name, sizeof(native.name), "%s", name);
    return tc_event_encode(&native, NULL) != 0
               ? 0
               : tc_core_pmus_counts(tc_core_pmus_here(), cpu, &native.attr, name, err);
}

/* Whether PAPI knows the event and the processor counts it. Errors: -ENOENT. */
static int check_event(const struct tc_event *event, int cpu, struct tc_error *err)
{
    PAPI_event_info_t info;
    int code;
    int component = begin(err);
    if (component < 0) {
        return component;
    }
    if (PAPI_event_name_to_code(event->name, &code) != PAPI_OK ||
        PAPI_query_event(code) != PAPI_OK || PAPI_get_event_info(code, &info) != PAPI_OK) {
        return unknown(event, err);
    }
    if (PAPI_get_event_component(code) != component) {
        return tc_error_set(err, ENOENT, "%s is no event of the processor's counters; name another",
                            event->name);
    }
    int rc = info.count == 0 || !IS_PRESET(code) ? check_native(event->name, cpu, err) : 0;
    for (unsigned int i = 0; rc == 0 && IS_PRESET(code) && i < info.count; i++) {
        rc = check_native(info.name[i], cpu, err);
    }
    return rc;
}

static bool is_derived(const struct tc_event *event)
{
    PAPI_event_info_t info;
    int code;
    return PAPI_event_name_to_code(event->name, &code) == PAPI_OK && IS_PRESET(code) &&
           PAPI_get_event_info(code, &info) == PAPI_OK && info.count > 1;
}

/* The mode of a set: that of what is derived in it; the others bring their own. Everybody may have
 * a set in user mode. */
static enum tc_mode mode_of(const struct tc_event *events, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (is_derived(&events[i])) {
            return events[i].mode;
        }
    }
    return TC_MODE_USER;
}

/* Adds a known event. Returns PAPI's error; PAPI_ECMP where it would have to have another mode. */
static int add(int id, enum tc_mode mode, const struct tc_event *event)
{
    PAPI_event_info_t info;
    char name[PAPI_HUGE_STR_LEN];
    int code;
    if (is_derived(event)) {
        return event->mode == mode ? PAPI_add_named_event(id, event->name) : PAPI_ECMP;
    }
    bool preset = PAPI_event_name_to_code(event->name, &code) == PAPI_OK && IS_PRESET(code) &&
                  PAPI_get_event_info(code, &info) == PAPI_OK;
    (void)snprintf(name, sizeof(name), "%.*s:u=%d:k=%d", PAPI_2MAX_STR_LEN,
                   preset ? info.name[0] : event->name, (event->mode & TC_MODE_USER) != 0,
                   (event->mode & TC_MODE_KERNEL) != 0);
    return PAPI_add_named_event(id, name);
}

static int domain_of(enum tc_mode mode)
{
    return ((mode & TC_MODE_USER) != 0 ? PAPI_DOM_USER : 0) |
           ((mode & TC_MODE_KERNEL) != 0 ? PAPI_DOM_KERNEL : 0);
}

static void destroy_set(int id)
{
    long long values[TC_EVENTS_MAX];
    int state = 0;
    if (id == PAPI_NULL) {
        return;
    }
    if (PAPI_state(id, &state) == PAPI_OK && (state & PAPI_RUNNING) != 0) {
        (void)PAPI_stop(id, values);
    }
    (void)PAPI_cleanup_eventset(id);
    (void)PAPI_destroy_eventset(&id);
}

/* The granularity first: it would put the set on the CPU that this runs on. */
static int place_on_cpu(int id, int cpu)
{
    PAPI_option_t granularity = {.granularity = {.eventset = id, .granularity = PAPI_GRN_SYS}};
    PAPI_option_t attach = {.cpu = {.eventset = id, .cpu_num = (unsigned int)cpu}};
    int rc = PAPI_set_opt(PAPI_GRANUL, &granularity);
    return rc == PAPI_OK ? PAPI_set_opt(PAPI_CPU_ATTACH, &attach) : rc;
}

static int place_on_process(int id, pid_t pid)
{
    PAPI_option_t inherit = {.inherit = {.eventset = id, .inherit = PAPI_INHERIT_ALL}};
    int rc = PAPI_set_opt(PAPI_INHERIT, &inherit);
    return rc == PAPI_OK && pid != 0 ? PAPI_attach(id, (unsigned long)pid) : rc;
}

/* Returns PAPI_OK and the set in *id, or PAPI's error. */
static int make_set(const struct place *place, enum tc_mode mode, int *id)
{
    int component = begin(NULL);
    *id = PAPI_NULL;
    int rc = component < 0 ? PAPI_ENOCMP : PAPI_create_eventset(id);
    if (rc == PAPI_OK) {
        rc = PAPI_assign_eventset_component(*id, component);
    }
    if (rc == PAPI_OK) {
        PAPI_option_t domain = {.domain = {.eventset = *id, .domain = domain_of(mode)}};
        rc = PAPI_set_opt(PAPI_DOMAIN, &domain);
    }
    if (rc == PAPI_OK) {
        rc = place->scope == TC_SCOPE_CPU ? place_on_cpu(*id, place->cpu)
                                          : place_on_process(*id, place->pid);
    }
    if (rc != PAPI_OK) {
        destroy_set(*id);
        *id = PAPI_NULL;
    }
    return rc;
}

static int try_events(const struct tc_event *events, size_t count, const struct place *place)
{
    long long values[TC_EVENTS_MAX + 2];
    int id;
    enum tc_mode mode = mode_of(events, count);
    int rc = make_set(place, mode, &id);
    for (size_t i = 0; rc == PAPI_OK && i < count; i++) {
        rc = add(id, mode, &events[i]);
    }
    if (rc == PAPI_OK && (rc = PAPI_start(id)) == PAPI_OK) {
        rc = PAPI_stop(id, values);
    }
    destroy_set(id);
    return rc;
}

/* Where whole CPUs may not be counted, the counters are tried on this process. */
static bool papi_fits(const struct tc_event *events, size_t count, void *context)
{
    const struct place place = {.cpu = *(const int *)context,
                                .scope = tc_perf_scope(*(const int *)context)};
    for (size_t i = 0; i < count; i++) {
        if (check_event(&events[i], place.cpu, NULL) != 0) {
            return false;
        }
    }
    return count > 0 && try_events(events, count, &place) == PAPI_OK;
}

static enum tc_status explain(int code, const struct tc_event *event, enum tc_scope scope,
                              char *reason, size_t size)
{
    switch (code) {
    case PAPI_EPERM:
    case PAPI_EINVAL_DOM:
        return tc_perf_explain(EACCES, event, scope, reason, size);
    case PAPI_ECNFLCT:
    case PAPI_ECOUNT:
        (void)snprintf(reason, size,
                       "PAPI has no counter left for %s beside the others of its set: name fewer "
                       "events",
                       event->name);
        return TC_STATUS_UNSUPPORTED;
    case PAPI_ECMP:
        (void)snprintf(
            reason, size,
            "PAPI computes %s of several events, in one mode for a whole set: name it in a "
            "set of its own",
            event->name);
        return TC_STATUS_UNSUPPORTED;
    case PAPI_ENOEVNT:
        (void)snprintf(reason, size, "PAPI cannot open %s on this processor; name another event",
                       event->name);
        return TC_STATUS_UNSUPPORTED;
    default:
        (void)snprintf(reason, size, "PAPI cannot count %s: %s", event->name, PAPI_strerror(code));
        return TC_STATUS_FAILED;
    }
}

static void fail_slot(struct tc_slot *slot, enum tc_status status, const char *reason)
{
    slot->status = status;
    (void)snprintf(slot->reason, sizeof(slot->reason), "%.*s", TC_REASON_MAX - 1, reason);
}

/* Adds an event to its set, or says in the slot why not. */
static void add_event(struct set *set, enum tc_mode mode, const struct tc_event *event,
                      const struct place *place, struct tc_slot *slot, size_t slot_index)
{
    struct tc_error err = {""};
    if (check_event(event, place->cpu, &err) != 0) {
        fail_slot(slot, TC_STATUS_UNSUPPORTED, err.message);
        return;
    }
    int rc = set->id == PAPI_NULL ? set->failed : add(set->id, mode, event);
    if (rc == PAPI_OK) {
        set->slots[set->count++] = slot_index;
    } else {
        slot->status = explain(rc, event, place->scope, slot->reason, sizeof(slot->reason));
    }
}

/* Why nothing of a request can be counted; TC_STATUS_OK: nothing is known against it. */
struct obstacle {
    enum tc_status status;
    char reason[TC_REASON_MAX];
};

static void open_set(struct papi_counters *papi, size_t index,
                     const struct tc_source_request *request, const struct obstacle *obstacle)
{
    const struct place place = {
        .scope = request->scope, .cpu = request->cpus->ids[index], .pid = request->pid};
    struct set *set = &papi->sets[index];
    enum tc_mode mode = TC_MODE_USER;
    bool clear = obstacle->status == TC_STATUS_OK;
    if (clear) {
        mode = mode_of(request->events, request->events_count);
        set->failed = make_set(&place, mode, &set->id);
    }
    if (place.scope == TC_SCOPE_PROCESS && place.pid != 0 && set->id != PAPI_NULL) {
        of_the_tree = set;
    }
    for (size_t e = 0; e < request->events_count; e++) {
        size_t slot_index = index * request->events_count + e;
        struct tc_slot *slot = &papi->base.slots[slot_index];
        (void)snprintf(slot->event, sizeof(slot->event), "%s", request->events[e].name);
        slot->mode = request->events[e].mode;
        slot->cpu = place.scope == TC_SCOPE_CPU ? place.cpu : TC_SLOT_NO_CPU;
        if (clear) {
            add_event(set, mode, &request->events[e], &place, slot, slot_index);
        } else {
            fail_slot(slot, obstacle->status, obstacle->reason);
        }
    }
}

static void open_sets(struct papi_counters *papi, const struct tc_source_request *request)
{
    struct obstacle obstacle;
    obstacle.status = tc_perf_pmu(request->cpus->ids[0], obstacle.reason, sizeof(obstacle.reason));
    if (obstacle.status == TC_STATUS_OK && request->scope == TC_SCOPE_PROCESS &&
        request->pid != 0 && of_the_tree != NULL) {
        obstacle.status = TC_STATUS_UNSUPPORTED;
        (void)snprintf(obstacle.reason, sizeof(obstacle.reason),
                       "PAPI counts one set of a process tree's events only: name one --events, "
                       "of no more events than the PMU has counters, or use --source perf");
    }
    for (size_t s = 0; s < papi->sets_count; s++) {
        open_set(papi, s, request, &obstacle);
    }
}

static void papi_close(struct tc_counters *counters)
{
    struct papi_counters *papi = (struct papi_counters *)counters;
    if (papi == NULL) {
        return;
    }
    for (size_t s = 0; papi->sets != NULL && s < papi->sets_count; s++) {
        destroy_set(papi->sets[s].id);
        of_the_tree = of_the_tree == &papi->sets[s] ? NULL : of_the_tree;
    }
    free(papi->sets);
    free(papi->base.slots);
    free(papi);
}

static int papi_open(struct tc_counters **counters, const struct tc_source_request *request,
                     struct tc_error *err)
{
    struct papi_counters *papi = calloc(1, sizeof(*papi));
    if (papi == NULL) {
        return tc_error_set(err, ENOMEM, "out of memory for PAPI's counters");
    }
    papi->base.source = &tc_source_papi;
    papi->base.sampling = TC_SAMPLING_READ;
    (void)snprintf(papi->base.sampling_reason, sizeof(papi->base.sampling_reason),
                   "PAPI does not have the kernel sample groups of counters");
    papi->sets_count = request->scope == TC_SCOPE_CPU ? request->cpus->count : 1;
    papi->base.slots_count = papi->sets_count * request->events_count;
    papi->sets = calloc(papi->sets_count, sizeof(*papi->sets));
    papi->base.slots = calloc(papi->base.slots_count, sizeof(*papi->base.slots));
    if (papi->sets == NULL || papi->base.slots == NULL) {
        papi->sets_count = 0;
        papi_close(&papi->base);
        return tc_error_set(err, ENOMEM, "out of memory for PAPI's counters");
    }
    for (size_t s = 0; s < papi->sets_count; s++) {
        papi->sets[s].id = PAPI_NULL;
    }
    open_sets(papi, request);
    *counters = &papi->base;
    return 0;
}

static int papi_start(struct tc_counters *counters, struct tc_error *err)
{
    struct papi_counters *papi = (struct papi_counters *)counters;
    for (size_t s = 0; s < papi->sets_count; s++) {
        int rc = papi->sets[s].count == 0 ? PAPI_OK : PAPI_start(papi->sets[s].id);
        if (rc != PAPI_OK) {
            return tc_error_set(err, EIO, "PAPI's counters do not start: %s", PAPI_strerror(rc));
        }
    }
    return 0;
}

static int papi_stop(struct tc_counters *counters, struct tc_error *err)
{
    struct papi_counters *papi = (struct papi_counters *)counters;
    long long values[TC_EVENTS_MAX];
    for (size_t s = 0; s < papi->sets_count; s++) {
        int rc = papi->sets[s].count == 0 ? PAPI_OK : PAPI_stop(papi->sets[s].id, values);
        if (rc != PAPI_OK) {
            return tc_error_set(err, EIO, "PAPI's counters do not stop: %s", PAPI_strerror(rc));
        }
    }
    return 0;
}

static int papi_read(struct tc_counters *counters, enum tc_depth depth, struct tc_reading *readings,
                     struct tc_error *err)
{
    struct papi_counters *papi = (struct papi_counters *)counters;
    (void)depth; /* every counter is as cheap */
    for (size_t s = 0; s < papi->sets_count; s++) {
        const struct set *set = &papi->sets[s];
        long long values[TC_EVENTS_MAX];
        int rc = set->count == 0 ? PAPI_OK : PAPI_read(set->id, values);
        if (rc != PAPI_OK) {
            return tc_error_set(err, EIO, "reading PAPI's counters: %s", PAPI_strerror(rc));
        }
        for (size_t i = 0; i < set->count; i++) {
            readings[set->slots[i]] = (struct tc_reading){.raw = (uint64_t)values[i]};
        }
    }
    return 0;
}

static void papi_probe(int cpu, struct tc_source_report *report)
{
    struct tc_error err = {""};
    *report = (struct tc_source_report){.scope = tc_perf_scope(cpu)};
    report->available = tc_perf_pmu(cpu, report->reason, sizeof(report->reason)) == TC_STATUS_OK;
    if (report->available && begin(&err) < 0) {
        report->available = false;
        (void)snprintf(report->reason, sizeof(report->reason), "%.*s", TC_REASON_MAX - 1,
                       err.message);
    }
}

/* Nothing of an event is known before PAPI opens it. */
static int papi_encode(struct tc_event *event, struct tc_error *err)
{
    (void)err;
    event->hardware = true;
    event->known = true;
    return 0;
}

const struct tc_source tc_source_papi = {
    .name = "papi",
    .events = default_events,
    .anchor = "PAPI_TOT_INS",
    .encode = papi_encode,
    .scope = tc_perf_scope,
    .fits = papi_fits,
    .probe = papi_probe,
    .open = papi_open,
    .start = papi_start,
    .read = papi_read,
    .stop = papi_stop,
    .close = papi_close,
};
