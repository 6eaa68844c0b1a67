/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "collector/softpmu/machine.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "collector/softpmu/cache.h"
#include "collector/softpmu/predictor.h"

#define SIZE_MAX_BYTES (UINT64_C(1) << 30)

/* Reads on after an error, for short code; only the first one is kept. */
struct reader {
    const char *origin;
    struct tc_error *err;
    int rc;
};

/* reader, format, arguments of the format. */
#define REFUSE(reader, ...)                                                                        \
    do {                                                                                           \
        if ((reader)->rc == 0)                                                                     \
            (reader)->rc = SET_ERROR(reader, __VA_ARGS__, "");                                     \
    } while (0)
#define SET_ERROR(reader, format, ...)                                                             \
    tc_error_set((reader)->err, EINVAL, "%s: " format "%s", (reader)->origin, __VA_ARGS__)

/* section: where the object stands, "" at the top; for messages "section.key". */
static const char *dot(const char *section)
{
    return section[0] == '\0' ? "" : ".";
}

static void only_keys(struct reader *reader, const json_t *object, const char *section,
                      const char *const *keys)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)object, key, value)
    {
        size_t i = 0;
        while (keys[i] != NULL && strcmp(keys[i], key) != 0)
            i++;
        if (keys[i] == NULL)
            REFUSE(reader, "%s%s%.40s: no such key", section, dot(section), key);
    }
}

static const json_t *object_at(struct reader *reader, const json_t *parent, const char *key,
                               const char *const *keys)
{
    const json_t *object = json_object_get(parent, key);
    if (!json_is_object(object)) {
        REFUSE(reader, "%s: expected an object", key);
        return NULL;
    }
    only_keys(reader, object, key, keys);
    return object;
}

/* The value of {"value": ..., "source": ...}: no constant without its source. */
static const json_t *constant(struct reader *reader, const json_t *parent, const char *section,
                              const char *key)
{
    static const char *const keys[] = {"value", "source", NULL};
    const json_t *object = json_object_get(parent, key);
    if (!json_is_object(object)) {
        REFUSE(reader, "%s%s%s: expected {\"value\": ..., \"source\": ...}", section, dot(section),
               key);
        return NULL;
    }
    only_keys(reader, object, key, keys);
    if (json_string_length(json_object_get(object, "source")) == 0)
        REFUSE(reader, "%s%s%s.source: expected where the value comes from", section, dot(section),
               key);
    return json_object_get(object, "value");
}

static uint64_t whole(struct reader *reader, const json_t *parent, const char *section,
                      const char *key, uint64_t low, uint64_t high)
{
    const json_t *value = constant(reader, parent, section, key);
    if (!json_is_integer(value) || json_integer_value(value) < 0) {
        REFUSE(reader, "%s%s%s: expected a whole number", section, dot(section), key);
        return low;
    }
    uint64_t number = (uint64_t)json_integer_value(value);
    if (number < low || number > high) {
        REFUSE(reader, "%s%s%s: %" PRIu64 " is not within %" PRIu64 " to %" PRIu64, section,
               dot(section), key, number, low, high);
        return low;
    }
    return number;
}

static uint64_t power_of_two(struct reader *reader, const json_t *parent, const char *section,
                             const char *key, uint64_t low, uint64_t high)
{
    uint64_t number = whole(reader, parent, section, key, low, high);
    if ((number & (number - 1)) != 0)
        REFUSE(reader, "%s%s%s: %" PRIu64 " is not a power of two", section, dot(section), key,
               number);
    return number;
}

static double clocks(struct reader *reader, const json_t *timing, const char *key)
{
    double number = json_number_value(constant(reader, timing, "timing", key));
    if (!json_is_number(json_object_get(json_object_get(timing, key), "value")) || number < 0 ||
        number > 10000)
        REFUSE(reader, "timing.%s: expected 0 to 10000 clocks", key);
    return number;
}

static void text(struct reader *reader, const json_t *value, const char *key, char *to, size_t size)
{
    size_t length = json_string_length(value);
    if (length == 0 || length >= size)
        REFUSE(reader, "%s: expected a text of 1 to %zu bytes", key, size - 1);
    else
        (void)snprintf(to, size, "%s", json_string_value(value));
}

/* A word that may stand in file names and command lines. */
static void name(struct reader *reader, const json_t *value, const char *key, bool dashes, char *to,
                 size_t size)
{
    static const char allowed[] = "-abcdefghijklmnopqrstuvwxyz0123456789";
    text(reader, value, key, to, size);
    if (reader->rc == 0 && to[strspn(to, dashes ? allowed : allowed + 1)] != '\0')
        REFUSE(reader, "%s: '%.40s' has other characters than a-z, 0-9%s", key, to,
               dashes ? " and -" : "");
}

/* A number of sets that lines can be spread over by their lowest bits. */
static void check_sets(struct reader *reader, const char *key, uint64_t bytes, uint32_t ways,
                       uint32_t line_bytes)
{
    if (reader->rc != 0)
        return;
    uint64_t sets = bytes / ways / line_bytes;
    if (sets * ways * line_bytes != bytes || sets == 0 || (sets & (sets - 1)) != 0)
        REFUSE(reader,
               "%s: %" PRIu64 " bytes in %u ways of %u-byte lines: bytes / ways / line_bytes must "
               "be a power of two",
               key, bytes, ways, line_bytes);
}

/* All caches have lines of one size: one line of the L1 is one of the L2 and of the bus. */
static uint32_t line_bytes(struct reader *reader, const json_t *object, const char *section,
                           uint32_t expected)
{
    uint32_t bytes = (uint32_t)power_of_two(reader, object, section, "line_bytes", 16, 256);
    if (expected != 0 && bytes != expected)
        REFUSE(reader, "%s.line_bytes: %u, but l1i's is %u, and all must be the same", section,
               bytes, expected);
    return bytes;
}

static void read_cache(struct reader *reader, const json_t *root, const char *section,
                       uint32_t expected_line_bytes, struct tc_cache_geometry *cache)
{
    static const char *const keys[] = {"bytes", "ways", "line_bytes", NULL};
    const json_t *object = object_at(reader, root, section, keys);
    cache->bytes = whole(reader, object, section, "bytes", 1, SIZE_MAX_BYTES);
    cache->ways = (uint32_t)whole(reader, object, section, "ways", 1, TC_CACHE_WAYS_MAX);
    cache->line_bytes = line_bytes(reader, object, section, expected_line_bytes);
    check_sets(reader, section, cache->bytes, cache->ways, cache->line_bytes);
}

static void read_variant(struct reader *reader, const json_t *object, struct tc_machine *machine)
{
    static const char *const keys[] = {"name", "bytes", NULL};
    struct tc_machine_variant *variant = &machine->variant[machine->variants];
    if (!json_is_object(object)) {
        REFUSE(reader, "l2.variants: expected a list of objects");
        return;
    }
    only_keys(reader, object, "l2.variants", keys);
    name(reader, json_object_get(object, "name"), "l2.variants.name", false, variant->name,
         sizeof(variant->name));
    variant->l2_bytes = whole(reader, object, "l2.variants", "bytes", 1, SIZE_MAX_BYTES);
    check_sets(reader, "l2.variants", variant->l2_bytes, machine->l2_ways, machine->l1d.line_bytes);
    for (uint32_t v = 0; v < machine->variants; v++) {
        if (strcmp(machine->variant[v].name, variant->name) == 0)
            REFUSE(reader, "l2.variants: '%s' is there twice", variant->name);
    }
    machine->variants++;
}

static void read_l2(struct reader *reader, const json_t *root, struct tc_machine *machine)
{
    static const char *const keys[] = {"ways", "line_bytes", "variants", NULL};
    const json_t *l2 = object_at(reader, root, "l2", keys);
    machine->l2_ways = (uint32_t)whole(reader, l2, "l2", "ways", 1, TC_CACHE_WAYS_MAX);
    (void)line_bytes(reader, l2, "l2", machine->l1i.line_bytes);
    const json_t *list = json_object_get(l2, "variants");
    size_t count = json_array_size(list);
    if (count < 1 || count > TC_SOFTPMU_VARIANTS_MAX)
        REFUSE(reader, "l2.variants: expected a list of 1 to %d", TC_SOFTPMU_VARIANTS_MAX);
    for (size_t i = 0; i < count && reader->rc == 0; i++)
        read_variant(reader, json_array_get(list, i), machine);
}

static void read_predictor(struct reader *reader, const json_t *root,
                           struct tc_machine_predictor *predictor)
{
    static const char *const keys[] = {"btb_entries",  "btb_ways",     "index_shift",
                                       "history_bits", "return_stack", NULL};
    static const char section[] = "predictor";
    const json_t *object = object_at(reader, root, section, keys);
    predictor->btb_entries =
        (uint32_t)power_of_two(reader, object, section, "btb_entries", 1, 1u << 20);
    predictor->btb_ways =
        (uint32_t)power_of_two(reader, object, section, "btb_ways", 1, TC_BTB_WAYS_MAX);
    predictor->index_shift = (uint32_t)whole(reader, object, section, "index_shift", 0, 12);
    predictor->history_bits =
        (uint32_t)whole(reader, object, section, "history_bits", 0, TC_HISTORY_BITS_MAX);
    predictor->return_stack = (uint32_t)whole(reader, object, section, "return_stack", 1, 1024);
    if (predictor->btb_entries < predictor->btb_ways)
        REFUSE(reader, "predictor.btb_entries: %u, but btb_ways is %u", predictor->btb_entries,
               predictor->btb_ways);
}

static void read_bus(struct reader *reader, const json_t *root, struct tc_machine *machine)
{
    static const char *const keys[] = {"clock_hz", "width_bytes", NULL};
    const json_t *bus = object_at(reader, root, "bus", keys);
    machine->bus_clock_hz = whole(reader, bus, "bus", "clock_hz", 1, machine->clock_hz);
    machine->bus_width_bytes =
        (uint32_t)power_of_two(reader, bus, "bus", "width_bytes", 1, machine->l1d.line_bytes);
}

static void read_timing(struct reader *reader, const json_t *root, struct tc_machine_timing *timing)
{
    static const char *const keys[] = {"issue_cpi",
                                       "l1i_miss",
                                       "l1d_load_miss",
                                       "l1d_store_miss",
                                       "l2_load_miss",
                                       "l2_store_miss",
                                       "l2_ifetch_miss",
                                       "llc_miss",
                                       "hitm",
                                       "upgrade",
                                       "mispredict",
                                       "redirect",
                                       NULL};
    double *const values[] = {
        &timing->issue_cpi,      &timing->l1i_miss,     &timing->l1d_load_miss,
        &timing->l1d_store_miss, &timing->l2_load_miss, &timing->l2_store_miss,
        &timing->l2_ifetch_miss, &timing->llc_miss,     &timing->hitm,
        &timing->upgrade,        &timing->mispredict,   &timing->redirect};
    const json_t *object = object_at(reader, root, "timing", keys);
    for (size_t i = 0; keys[i] != NULL; i++)
        *values[i] = clocks(reader, object, keys[i]);
    if (timing->issue_cpi <= 0)
        REFUSE(reader, "timing.issue_cpi: expected more than 0");
}

static void read_left_out(struct reader *reader, const json_t *root)
{
    const json_t *list = json_object_get(root, "left_out");
    if (json_array_size(list) == 0)
        REFUSE(reader, "left_out: expected a list of what the machine has and the model has not");
    for (size_t i = 0; i < json_array_size(list); i++) {
        if (json_string_length(json_array_get(list, i)) == 0)
            REFUSE(reader, "left_out: expected texts");
    }
}

static void read_machine(struct reader *reader, const json_t *root, struct tc_machine *machine)
{
    static const char *const keys[] = {
        "name", "description", "qemu_cpu",  "guest", "clock_hz", "fetch_block_bytes", "l1i", "l1d",
        "l2",   "llc",         "predictor", "bus",   "timing",   "left_out",          NULL};
    if (!json_is_object(root)) {
        REFUSE(reader, "expected an object");
        return;
    }
    only_keys(reader, root, "", keys);
    name(reader, json_object_get(root, "name"), "name", true, machine->name, sizeof(machine->name));
    text(reader, json_object_get(root, "description"), "description", machine->description,
         sizeof(machine->description));
    text(reader, constant(reader, root, "", "qemu_cpu"), "qemu_cpu", machine->qemu_cpu,
         sizeof(machine->qemu_cpu));
    text(reader, json_object_get(root, "guest"), "guest", machine->guest, sizeof(machine->guest));
    if (reader->rc == 0 && strcmp(machine->guest, "i386") != 0 &&
        strcmp(machine->guest, "x86_64") != 0)
        REFUSE(reader, "guest: '%s' is neither i386 nor x86_64", machine->guest);
    machine->clock_hz = whole(reader, root, "", "clock_hz", 1000000, UINT64_C(100000000000));
    read_cache(reader, root, "l1i", 0, &machine->l1i);
    read_cache(reader, root, "l1d", machine->l1i.line_bytes, &machine->l1d);
    machine->fetch_block_bytes =
        (uint32_t)power_of_two(reader, root, "", "fetch_block_bytes", 1, machine->l1i.line_bytes);
    read_l2(reader, root, machine);
    machine->has_llc = json_object_get(root, "llc") != NULL;
    if (machine->has_llc)
        read_cache(reader, root, "llc", machine->l1i.line_bytes, &machine->llc);
    read_predictor(reader, root, &machine->predictor);
    if (json_object_get(root, "bus") != NULL)
        read_bus(reader, root, machine);
    read_timing(reader, root, &machine->timing);
    read_left_out(reader, root);
}

static void keep_variant(struct reader *reader, const char *wanted, struct tc_machine *machine)
{
    char known[256] = "";
    if (reader->rc != 0 || wanted == NULL)
        return;
    for (uint32_t v = 0; v < machine->variants; v++) {
        size_t used = strlen(known);
        (void)snprintf(known + used, sizeof(known) - used, "%s%s", v > 0 ? ", " : "",
                       machine->variant[v].name);
        if (strcmp(machine->variant[v].name, wanted) == 0) {
            machine->variant[0] = machine->variant[v];
            machine->variants = 1;
            return;
        }
    }
    REFUSE(reader, "%s has no variant '%.40s'; it has %s", machine->name, wanted, known);
}

static int read_root(json_t *root, const json_error_t *json_error, const char *origin,
                     const char *variant, struct tc_machine *machine, struct tc_error *err)
{
    if (root == NULL)
        return tc_error_set(err, EINVAL, "%s:%d: %s", origin, json_error->line, json_error->text);
    struct reader reader = {.origin = origin, .err = err};
    *machine = (struct tc_machine){0};
    read_machine(&reader, root, machine);
    keep_variant(&reader, variant, machine);
    json_decref(root);
    return reader.rc;
}

int tc_machine_parse(const char *json, size_t length, const char *origin, const char *variant,
                     struct tc_machine *machine, struct tc_error *err)
{
    json_error_t json_error;
    json_t *root = json_loadb(json, length, JSON_REJECT_DUPLICATES, &json_error);
    return read_root(root, &json_error, origin, variant, machine, err);
}

int tc_machine_load(const char *path, const char *variant, struct tc_machine *machine,
                    struct tc_error *err)
{
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return tc_error_set(err, errno, "machine file %s: %s", path, strerror(errno));
    json_error_t json_error;
    json_t *root = json_loadf(file, JSON_REJECT_DUPLICATES, &json_error);
    (void)fclose(file);
    return read_root(root, &json_error, path, variant, machine, err);
}
