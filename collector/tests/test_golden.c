/* perf_event_attrs as they are opened, against golden/: every field, of every event and set-up. */
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "collector/source_perf.h"
#include "collector/tests/check.h"

/* All of linux/perf_event.h's that hold something. */
#define FIELDS(X)                                                                                  \
    X(type)                                                                                        \
    X(size)                                                                                        \
    X(config)                                                                                      \
    X(config1)                                                                                     \
    X(config2)                                                                                     \
    X(sample_period)                                                                               \
    X(sample_type)                                                                                 \
    X(read_format)                                                                                 \
    X(disabled)                                                                                    \
    X(inherit)                                                                                     \
    X(pinned)                                                                                      \
    X(exclusive)                                                                                   \
    X(exclude_user)                                                                                \
    X(exclude_kernel)                                                                              \
    X(exclude_hv)                                                                                  \
    X(exclude_idle)                                                                                \
    X(mmap)                                                                                        \
    X(comm)                                                                                        \
    X(freq)                                                                                        \
    X(inherit_stat)                                                                                \
    X(enable_on_exec)                                                                              \
    X(task)                                                                                        \
    X(watermark)                                                                                   \
    X(precise_ip)                                                                                  \
    X(mmap_data)                                                                                   \
    X(sample_id_all)                                                                               \
    X(exclude_host)                                                                                \
    X(exclude_guest)                                                                               \
    X(exclude_callchain_kernel)                                                                    \
    X(exclude_callchain_user)                                                                      \
    X(mmap2)                                                                                       \
    X(comm_exec)                                                                                   \
    X(use_clockid)                                                                                 \
    X(context_switch)                                                                              \
    X(write_backward)                                                                              \
    X(namespaces)                                                                                  \
    X(ksymbol)                                                                                     \
    X(bpf_event)                                                                                   \
    X(aux_output)                                                                                  \
    X(cgroup)                                                                                      \
    X(text_poke)                                                                                   \
    X(build_id)                                                                                    \
    X(inherit_thread)                                                                              \
    X(remove_on_exec)                                                                              \
    X(sigtrap)                                                                                     \
    X(wakeup_watermark)                                                                            \
    X(bp_type)                                                                                     \
    X(branch_sample_type)                                                                          \
    X(sample_regs_user)                                                                            \
    X(sample_stack_user)                                                                           \
    X(clockid)                                                                                     \
    X(sample_regs_intr)                                                                            \
    X(aux_watermark)                                                                               \
    X(sample_max_stack)                                                                            \
    X(aux_sample_size)                                                                             \
    X(sig_data)

enum { FIELD_EVENT_SELECT_HIGH = 32, FIELD_UMASK = 8, FIELD_INV = 23, FIELD_CMASK = 24 };

static json_t *load(const char *name)
{
    char path[512];
    json_error_t where;
    (void)snprintf(path, sizeof(path), "%s/%s.json", TC_GOLDEN_DIR, name);
    json_t *document = json_load_file(path, JSON_REJECT_DUPLICATES, &where);
    if (document == NULL) {
        fail_msg("%s:%d: %s", path, where.line, where.text);
    }
    return document;
}

/* A number written as "0x41"; 0 where there is no such key. */
static uint64_t number(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    char *end = NULL;
    if (text == NULL) {
        return 0;
    }
    uint64_t value = strtoull(text, &end, 0);
    if (end == text || *end != '\0') {
        fail_msg("%s: '%s' is no number", key, text);
    }
    return value;
}

static void check_keys(const json_t *fields)
{
    const char *key;
    json_t *value;
    /* jansson iterates over const objects only by a cast. */
    json_object_foreach((json_t *)fields, key, value)
    {
        bool known = false;
#define IS_KNOWN(field) known = known || strcmp(key, #field) == 0;
        FIELDS(IS_KNOWN)
#undef IS_KNOWN
        if (!known) {
            fail_msg("a golden names '%s', which is no field", key);
        }
    }
}

/* What neither names must be 0, but for the size. */
static void compare(const char *what, const struct perf_event_attr *attr, const json_t *event,
                    const json_t *opened)
{
    check_keys(event);
    check_keys(opened);
#define COMPARE(field)                                                                             \
    do {                                                                                           \
        uint64_t golden = number(event, #field) | number(opened, #field);                          \
        golden = strcmp(#field, "size") == 0 ? sizeof(*attr) : golden;                             \
        if ((uint64_t)attr->field != golden) {                                                     \
            fail_msg("%s: %s is %#" PRIx64 ", golden %#" PRIx64, what, #field,                     \
                     (uint64_t)attr->field, golden);                                               \
        }                                                                                          \
    } while (0);
    FIELDS(COMPARE)
#undef COMPARE
}

static json_t *hexadecimal(uint64_t value)
{
    return json_sprintf("%#llx", (unsigned long long)value);
}

/* IA32_PERFEVTSELx and AMD's PERF_CTL as the manuals lay them out, without the bits (user, kernel,
 * interrupt, enable) that the kernel sets itself. */
static json_t *golden_of(const json_t *event, const json_t *common)
{
    uint64_t select = number(event, "select");
    uint64_t config = (select & 0xff) | number(event, "umask") << FIELD_UMASK |
                      select >> 8 << FIELD_EVENT_SELECT_HIGH | number(event, "inv") << FIELD_INV |
                      number(event, "cmask") << FIELD_CMASK;
    const char *mode = json_string_value(json_object_get(event, "mode"));
    assert_non_null(mode);
    json_t *golden =
        json_pack("{s:o, s:o, s:o, s:s, s:s}", "type", hexadecimal(PERF_TYPE_RAW), "config",
                  hexadecimal(config), "config1", hexadecimal(number(event, "msr")), "exclude_user",
                  strchr(mode, 'u') == NULL ? "1" : "0", "exclude_kernel",
                  strchr(mode, 'k') == NULL ? "1" : "0");
    assert_int_equal(json_object_update(golden, (json_t *)common), 0);
    return golden;
}

static struct tc_event encoded(const char *pmu, const json_t *event)
{
    struct tc_event events[TC_EVENTS_MAX];
    struct tc_error err = {""};
    char text[2 * TC_EVENT_NAME_MAX];
    size_t count;
    (void)snprintf(text, sizeof(text), "%s::%s:%s", pmu,
                   json_string_value(json_object_get(event, "name")),
                   json_string_value(json_object_get(event, "mode")));
    if (tc_events_parse(text, events, &count, &err) != 0 ||
        tc_event_encode(&events[0], &err) != 0) {
        fail_msg("%s: %s", text, err.message);
    }
    assert_int_equal(count, 1);
    assert_true(events[0].hardware);
    return events[0];
}

static void compare_opened(const char *what, const struct tc_event *event, const json_t *golden)
{
    json_t *opened = load("opened");
    const char *name;
    json_t *setup;
    assert_true(json_object_size(opened) > 0);
    json_object_foreach(opened, name, setup)
    {
        const char *scope = json_string_value(json_object_get(setup, "scope"));
        const char *sampling = json_string_value(json_object_get(setup, "sampling"));
        struct perf_event_attr attr;
        char place[512];
        assert_non_null(scope);
        assert_non_null(sampling);
        tc_perf_member_attr(&attr, event,
                            strcmp(scope, "cpu") == 0 ? TC_SCOPE_CPU : TC_SCOPE_PROCESS,
                            json_is_true(json_object_get(setup, "leads")),
                            strcmp(sampling, "ring") == 0 ? TC_SAMPLING_RING : TC_SAMPLING_READ);
        (void)snprintf(place, sizeof(place), "%s, %s", what, name);
        compare(place, &attr, golden, json_object_get(setup, "attr"));
    }
    json_decref(opened);
}

static void compare_microarchitecture(const char *name)
{
    json_t *file = load(name);
    const json_t *events = json_object_get(file, "events");
    const char *pmu = json_string_value(json_object_get(file, "pmu"));
    size_t i;
    json_t *event;
    assert_true(json_array_size(events) > 0);
    json_array_foreach(events, i, event)
    {
        struct tc_event ours = encoded(pmu, event);
        json_t *golden = golden_of(event, json_object_get(file, "common"));
        compare_opened(ours.name, &ours, golden);
        json_decref(golden);
    }
    print_message("%s: %zu events\n", name, json_array_size(events));
    json_decref(file);
}

static void skylake_server(void **state)
{
    (void)state;
    compare_microarchitecture("skylake_server");
}

static void nehalem(void **state)
{
    (void)state;
    compare_microarchitecture("nehalem");
}

static void zen3(void **state)
{
    (void)state;
    compare_microarchitecture("zen3");
}

static void sampler(void **state)
{
    (void)state;
    json_t *golden = load("sampler");
    struct perf_event_attr attr;
    tc_perf_sampler_attr(&attr, number(golden, "sample_ns"));
    compare("sampler", &attr, json_object_get(golden, "attr"), NULL);
    json_decref(golden);
}

int main(void)
{
    if (setenv("LIBPFM_ENCODE_INACTIVE", "1", 1) != 0) {
        return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(skylake_server),
        cmocka_unit_test(nehalem),
        cmocka_unit_test(zen3),
        cmocka_unit_test(sampler),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
