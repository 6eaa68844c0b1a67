#include "collector/source_softpmu.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>

#include "collector/source_proc.h"

static const char host_reason[] =
    "this machine's /proc and /sys say nothing about the simulated machine";

#define VALUES_MAX (TC_SOFTPMU_EVENTS_MAX * TC_SOFTPMU_MODES * TC_SOFTPMU_VARIANTS_MAX)

/* One of a CPU's values in the page. */
struct value {
    uint32_t event;
    enum tc_softpmu_mode mode;
    uint32_t variant;
};

struct softpmu_counters {
    struct tc_counters base;
    const struct tc_softpmu *softpmu;
    size_t cpus;
    size_t values_count; /* of each CPU */
    struct value values[VALUES_MAX];
};

static bool is_text(const char *text, size_t size)
{
    return text[0] != '\0' && memchr(text, '\0', size) != NULL;
}

static bool event_fits(const struct tc_softpmu_page *page, const struct tc_softpmu_event *event)
{
    /* Slots are given as of variant 0. */
    uint32_t slots = page->shared_slots + page->variant_slots;
    bool fits = is_text(event->name, sizeof(event->name)) && event->origin <= TC_SOFTPMU_MODELLED &&
                event->terms_count <= TC_SOFTPMU_TERMS_MAX;
    for (uint32_t i = 0; fits && i < event->terms_count; i++) {
        fits = event->terms[i].slot < slots;
    }
    return fits;
}

static bool tables_fit(const struct tc_softpmu_page *page)
{
    bool fits = page->events > 0 && page->events <= TC_SOFTPMU_EVENTS_MAX && page->variants > 0 &&
                page->variants <= TC_SOFTPMU_VARIANTS_MAX &&
                is_text(page->machine, sizeof(page->machine));
    for (uint32_t i = 0; fits && i < page->variants; i++) {
        fits = is_text(page->variant_names[i], TC_SOFTPMU_NAME_MAX);
    }
    for (uint32_t i = 0; fits && i < page->events; i++) {
        fits = event_fits(page, &page->event[i]);
    }
    return fits;
}

static bool blocks_fit(const struct tc_softpmu_page *page)
{
    uint64_t slots = page->shared_slots + (uint64_t)page->variants * page->variant_slots;
    uint64_t block = sizeof(struct tc_softpmu_cpu) + TC_SOFTPMU_MODES * slots * sizeof(uint64_t);
    uint64_t room = page->total_bytes - page->cpus_offset;
    return page->slots == slots && page->cpus_offset >= sizeof(*page) &&
           page->cpus_offset <= page->total_bytes &&
           page->cpus_offset % TC_SOFTPMU_LINE_BYTES == 0 &&
           page->cpu_stride % TC_SOFTPMU_LINE_BYTES == 0 && page->cpu_stride >= block &&
           page->cpus <= room / page->cpu_stride;
}

int tc_softpmu_check(const struct tc_softpmu *softpmu, struct tc_error *err)
{
    uint32_t state = atomic_load_explicit(&softpmu->page->state, memory_order_acquire);
    if (state == TC_SOFTPMU_FAILED) {
        return tc_error_set(err, EIO, "the simulated machine's counters failed: %.*s",
                            TC_SOFTPMU_MESSAGE_MAX, softpmu->page->message);
    }
    return state == TC_SOFTPMU_ARMED ? 0 : -EAGAIN;
}

static int check_page(const struct tc_softpmu *softpmu, size_t cpus, struct tc_error *err)
{
    const struct tc_softpmu_page *page = softpmu->page;
    uint64_t magic = atomic_load_explicit(&page->magic, memory_order_acquire);
    if (magic == 0) {
        return -EAGAIN;
    }
    if (magic != TC_SOFTPMU_MAGIC) {
        return tc_error_set(err, EPROTO,
                            "not a simulated machine's page: its magic is %llx, expected %llx",
                            (unsigned long long)magic, (unsigned long long)TC_SOFTPMU_MAGIC);
    }
    if (page->version != TC_SOFTPMU_VERSION) {
        return tc_error_set(err, EPROTO,
                            "the simulated machine's page has version %u, expected %d: build "
                            "plugin and collector together",
                            page->version, TC_SOFTPMU_VERSION);
    }
    /* A plugin that could not begin has no more to tell than why. */
    int rc = tc_softpmu_check(softpmu, err);
    if (rc != 0 && rc != -EAGAIN) {
        return rc;
    }
    if (page->total_bytes != softpmu->bytes || !blocks_fit(page) || !tables_fit(page)) {
        return tc_error_set(err, EPROTO,
                            "the simulated machine's page contradicts itself (%llu of %zu bytes, "
                            "%u CPUs, %u events): was it cut short?",
                            (unsigned long long)page->total_bytes, softpmu->bytes, page->cpus,
                            page->events);
    }
    if (page->cpus != cpus || page->whole_system == 0) {
        return tc_error_set(
            err, EPROTO, "the page is of %s with %u CPUs; expected a whole system with %zu",
            page->whole_system == 0 ? "one program" : "a whole system", page->cpus, cpus);
    }
    return 0;
}

int tc_softpmu_map(struct tc_softpmu *softpmu, int fd, size_t cpus, struct tc_error *err)
{
    struct stat status;
    *softpmu = (struct tc_softpmu){0};
    if (fstat(fd, &status) != 0) {
        return tc_error_set(err, errno, "the simulated machine's page: fstat: %s", strerror(errno));
    }
    if ((uint64_t)status.st_size < sizeof(*softpmu->page)) {
        return -EAGAIN;
    }
    softpmu->bytes = (size_t)status.st_size;
    softpmu->page = mmap(NULL, softpmu->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (softpmu->page == MAP_FAILED) {
        softpmu->page = NULL;
        return tc_error_set(err, errno, "the simulated machine's page: mmap: %s", strerror(errno));
    }
    int rc = check_page(softpmu, cpus, err);
    if (rc != 0) {
        tc_softpmu_unmap(softpmu);
    }
    return rc;
}

void tc_softpmu_unmap(struct tc_softpmu *softpmu)
{
    if (softpmu->page != NULL) {
        (void)munmap(softpmu->page, softpmu->bytes);
    }
    *softpmu = (struct tc_softpmu){0};
}

void tc_softpmu_arm(const struct tc_softpmu *softpmu)
{
    atomic_store_explicit(&softpmu->page->wanted, TC_SOFTPMU_ARM, memory_order_release);
}

static void name_slot(struct tc_slot *slot, const struct tc_softpmu_page *page,
                      const struct value *value)
{
    const struct tc_softpmu_event *event = &page->event[value->event];
    static const enum tc_origin origins[] = {TC_ORIGIN_COUNTED, TC_ORIGIN_SIMULATED,
                                             TC_ORIGIN_MODELLED};
    slot->mode = value->mode == TC_SOFTPMU_USER ? TC_MODE_USER : TC_MODE_KERNEL;
    slot->origin = origins[event->origin];
    (void)snprintf(slot->event, sizeof(slot->event), "%s", event->name);
    if (event->varies != 0) {
        (void)snprintf(slot->variant, sizeof(slot->variant), "%s",
                       page->variant_names[value->variant]);
    }
}

/* What each of a CPU's slots is; values: room for all. Returns how many there are. */
static size_t list_values(const struct tc_softpmu_page *page, struct value *values)
{
    size_t count = 0;
    for (uint32_t event = 0; event < page->events; event++) {
        uint32_t variants = page->event[event].varies != 0 ? page->variants : 1;
        for (uint32_t i = 0; i < TC_SOFTPMU_MODES * variants; i++) {
            values[count++] =
                (struct value){event, (enum tc_softpmu_mode)(i / variants), i % variants};
        }
    }
    return count;
}

static void softpmu_close(struct tc_counters *counters)
{
    if (counters != NULL) {
        free(counters->slots);
        free(counters);
    }
}

/* Without slots yet. */
static struct softpmu_counters *make_set(const struct tc_source *source,
                                         const struct tc_source_request *request)
{
    struct softpmu_counters *softpmu = calloc(1, sizeof(*softpmu));
    if (softpmu != NULL) {
        softpmu->base.source = source;
        softpmu->softpmu = request->softpmu;
        softpmu->cpus = request->cpus->count;
        (void)snprintf(softpmu->base.sampling_reason, sizeof(softpmu->base.sampling_reason),
                       "a simulated machine's counters are memory that is read");
    }
    return softpmu;
}

static int no_memory(struct softpmu_counters *softpmu, struct tc_error *err)
{
    free(softpmu);
    return tc_error_set(err, ENOMEM, "out of memory for the simulated machine's counters");
}

static int softpmu_open(struct tc_counters **counters, const struct tc_source_request *request,
                        struct tc_error *err)
{
    const struct tc_softpmu_page *page = request->softpmu->page;
    struct softpmu_counters *softpmu = make_set(&tc_source_softpmu, request);
    if (softpmu == NULL) {
        return no_memory(softpmu, err);
    }
    softpmu->values_count = list_values(page, softpmu->values);
    softpmu->base.slots_count = softpmu->cpus * softpmu->values_count;
    if (softpmu->base.slots_count == 0) {
        free(softpmu);
        return tc_error_set(err, EPROTO, "the simulated machine's page has no events");
    }
    softpmu->base.slots = calloc(softpmu->base.slots_count, sizeof(*softpmu->base.slots));
    if (softpmu->base.slots == NULL) {
        return no_memory(softpmu, err);
    }
    for (size_t i = 0; i < softpmu->base.slots_count; i++) {
        softpmu->base.slots[i].cpu = request->cpus->ids[i / softpmu->values_count];
        name_slot(&softpmu->base.slots[i], page, &softpmu->values[i % softpmu->values_count]);
    }
    *counters = &softpmu->base;
    return 0;
}

/* What was counted until a failure is void: better no window than a wrong one. */
static int softpmu_read(struct tc_counters *counters, enum tc_depth depth,
                        struct tc_reading *readings, struct tc_error *err)
{
    const struct softpmu_counters *softpmu = (const struct softpmu_counters *)counters;
    const struct tc_softpmu_page *page = softpmu->softpmu->page;
    (void)depth;
    for (uint32_t cpu = 0; cpu < softpmu->cpus; cpu++) {
        for (size_t i = 0; i < softpmu->values_count; i++) {
            const struct value *value = &softpmu->values[i];
            (readings++)->raw =
                tc_softpmu_page_value(page, value->event, cpu, value->mode, value->variant);
        }
    }
    int rc = tc_softpmu_check(softpmu->softpmu, err);
    return rc == -EAGAIN ? tc_error_set(err, EIO, "the simulated machine stopped counting") : rc;
}

/* The plugin counts all the time once it is armed: there is nothing to start or stop. */
static int softpmu_start_stop(struct tc_counters *counters, struct tc_error *err)
{
    (void)counters;
    (void)err;
    return 0;
}

/* Whether a machine can be simulated here is seen when one is. */
static void softpmu_probe(int cpu, struct tc_source_report *report)
{
    (void)cpu;
    *report = (struct tc_source_report){.available = true, .scope = TC_SCOPE_CPU};
}

const struct tc_source tc_source_softpmu = {
    .name = "softpmu",
    .probe = softpmu_probe,
    .open = softpmu_open,
    .start = softpmu_start_stop,
    .read = softpmu_read,
    .stop = softpmu_start_stop,
    .close = softpmu_close,
};

static bool is_idle_time(enum tc_proc_cpu_value value)
{
    return value == TC_PROC_IDLE || value == TC_PROC_IDLE_FINE;
}

static int system_open(struct tc_counters **counters, const struct tc_source_request *request,
                       struct tc_error *err)
{
    struct softpmu_counters *softpmu = make_set(&tc_source_softpmu_system, request);
    if (softpmu == NULL) {
        return no_memory(softpmu, err);
    }
    softpmu->base.slots_count = tc_proc_system_slot(softpmu->cpus, TC_PROC_SYSTEM_VALUES);
    softpmu->base.slots = calloc(softpmu->base.slots_count, sizeof(*softpmu->base.slots));
    if (softpmu->base.slots == NULL) {
        return no_memory(softpmu, err);
    }
    tc_proc_name_slots(request->cpus, softpmu->base.slots);
    for (size_t i = 0; i < softpmu->base.slots_count; i++) {
        struct tc_slot *slot = &softpmu->base.slots[i];
        if (slot->cpu == TC_SLOT_NO_CPU ||
            !is_idle_time((enum tc_proc_cpu_value)(i % TC_PROC_CPU_VALUES))) {
            slot->status = TC_STATUS_UNSUPPORTED;
            (void)snprintf(slot->reason, sizeof(slot->reason), "%s", host_reason);
        }
    }
    *counters = &softpmu->base;
    return 0;
}

static int system_read(struct tc_counters *counters, enum tc_depth depth,
                       struct tc_reading *readings, struct tc_error *err)
{
    const struct softpmu_counters *softpmu = (const struct softpmu_counters *)counters;
    struct timespec now;
    (void)depth;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    uint64_t now_ns = (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
    for (uint32_t cpu = 0; cpu < softpmu->cpus; cpu++) {
        uint64_t idle_ns;
        if (!tc_softpmu_page_idle_ns(softpmu->softpmu->page, cpu, now_ns, &idle_ns)) {
            return tc_error_set(err, EIO, "the simulated machine died while CPU %u fell asleep",
                                cpu);
        }
        readings[tc_proc_cpu_slot(cpu, TC_PROC_IDLE)].raw = idle_ns;
        readings[tc_proc_cpu_slot(cpu, TC_PROC_IDLE_FINE)].raw = idle_ns;
    }
    return 0;
}

const struct tc_source tc_source_softpmu_system = {
    .name = "softpmu",
    .probe = softpmu_probe,
    .open = system_open,
    .start = softpmu_start_stop,
    .read = system_read,
    .stop = softpmu_start_stop,
    .close = softpmu_close,
};
