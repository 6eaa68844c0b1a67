/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "collector/softpmu/arguments.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* The index of value among names (a list that ends with NULL); -1: it is none of them. */
static int find(const char *value, const char *const *names)
{
    for (int i = 0; names[i] != NULL; i++)
        if (strcmp(value, names[i]) == 0)
            return i;
    return -1;
}

static int parse_cpus(struct tc_arguments *arguments, const char *value, struct tc_error *err)
{
    char *end = NULL;
    unsigned long cpus = strtoul(value, &end, 10);
    if (*value < '0' || *value > '9' || *end != '\0' || cpus < 1 || cpus > TC_ARGUMENTS_CPUS_MAX)
        return tc_error_set(err, EINVAL, "cpus: given '%s'; expected a number from 1 to %d", value,
                            TC_ARGUMENTS_CPUS_MAX);
    arguments->cpus = (uint32_t)cpus;
    return 0;
}

static int parse_word(struct tc_arguments *arguments, const char *key, const char *value,
                      struct tc_error *err)
{
    static const char *const armed[] = {"off", "on", NULL};
    static const char *const ways[] = {"models", "inline", "callback", "nothing", NULL};
    int index = -1;
    if (strcmp(key, "armed") == 0) {
        if ((index = find(value, armed)) < 0)
            return tc_error_set(err, EINVAL, "armed: given '%s'; expected on or off", value);
        arguments->armed = index == 0 ? TC_ARMED_OFF : TC_ARMED_ON;
    } else if (strcmp(key, "count") == 0) {
        if ((index = find(value, ways)) < 0)
            return tc_error_set(err, EINVAL,
                                "count: given '%s'; expected models, inline, callback or nothing",
                                value);
        arguments->count = (enum tc_count_way)index;
    } else if (strcmp(key, "check") == 0) {
        if (strcmp(value, "addresses") != 0)
            return tc_error_set(err, EINVAL, "check: given '%s'; expected addresses", value);
        arguments->check_addresses = true;
    } else {
        return tc_error_set(err, EINVAL,
                            "unknown argument '%s'; expected machine, variant, page, cpus, "
                            "armed, count or check",
                            key);
    }
    return 0;
}

int tc_arguments_parse(struct tc_arguments *arguments, int argc, char **argv, struct tc_error *err)
{
    *arguments = (struct tc_arguments){.machine = NULL};
    const struct {
        const char *key;
        const char **value;
    } texts[] = {
        {"machine", &arguments->machine},
        {"variant", &arguments->variant},
        {"page", &arguments->page},
    };
    for (int i = 0; i < argc; i++) {
        char *equals = strchr(argv[i], '=');
        if (equals == NULL || equals[1] == '\0')
            return tc_error_set(err, EINVAL, "'%s': expected KEY=VALUE", argv[i]);
        *equals = '\0';
        const char *value = equals + 1;
        const char **text = NULL;
        for (size_t t = 0; t < sizeof texts / sizeof texts[0]; t++)
            if (strcmp(argv[i], texts[t].key) == 0)
                text = texts[t].value;
        int rc = 0;
        if (text != NULL)
            *text = value;
        else if (strcmp(argv[i], "cpus") == 0)
            rc = parse_cpus(arguments, value, err);
        else
            rc = parse_word(arguments, argv[i], value, err);
        if (rc != 0)
            return rc;
    }
    if (arguments->machine == NULL)
        return tc_error_set(err, EINVAL, "machine: missing; expected the path of a machine file");
    if (arguments->variant != NULL && strcmp(arguments->variant, "all") == 0)
        arguments->variant = NULL;
    return 0;
}
