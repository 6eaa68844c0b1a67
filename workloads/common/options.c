#include "workloads/common/options.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Digits at the start of text; NULL where there are none or they overflow. */
static const char *digits(const char *text, uint64_t *value)
{
    char *end = NULL;
    if (!isdigit((unsigned char)*text)) {
        return NULL;
    }
    errno = 0;
    *value = strtoull(text, &end, 10);
    return errno == 0 ? end : NULL;
}

int tc_parse_size(const char *text, uint64_t *bytes, struct tc_error *err)
{
    static const struct {
        const char *name;
        uint64_t factor;
    } units[] = {
        {"", 1},          {"B", 1},        {"kB", 1000},     {"KB", 1000},
        {"KiB", 1 << 10}, {"MB", 1000000}, {"MiB", 1 << 20},
    };
    uint64_t value = 0;
    const char *unit = digits(text, &value);
    for (size_t i = 0; unit != NULL && i < sizeof(units) / sizeof(units[0]); i++) {
        if (strcmp(unit, units[i].name) == 0 && value <= TC_SIZE_MOST_BYTES / units[i].factor) {
            *bytes = value * units[i].factor;
            return 0;
        }
    }
    return tc_error_set(err, EINVAL,
                        "size '%s': expected a whole number and B, kB, KiB, MB or MiB, at most "
                        "250MB, such as 36KiB",
                        text);
}

int tc_parse_count(const char *text, uint64_t least, uint64_t most, uint64_t *count,
                   struct tc_error *err)
{
    const char *end = digits(text, count);
    if (end == NULL || *end != '\0' || *count < least || *count > most) {
        return tc_error_set(err, EINVAL, "'%s': expected a whole number from %llu to %llu", text,
                            (unsigned long long)least, (unsigned long long)most);
    }
    return 0;
}

int tc_parse_duration(const char *text, uint64_t *ns, struct tc_error *err)
{
    char *end = NULL;
    double value = isdigit((unsigned char)*text) ? strtod(text, &end) : NAN;
    double unit = 0;
    if (end != NULL && (*end == '\0' || strcmp(end, "s") == 0)) {
        unit = 1e9;
    } else if (end != NULL && strcmp(end, "ms") == 0) {
        unit = 1e6;
    }
    value *= unit;
    if (!isfinite(value) || value < 1 || value > 86400e9) {
        return tc_error_set(err, EINVAL,
                            "time '%s': expected seconds above 0 and at most a day, such as 5, "
                            "0.25 or 250ms",
                            text);
    }
    *ns = (uint64_t)value;
    return 0;
}

static int add_cpu(uint64_t cpu, const cpu_set_t *allowed, cpu_set_t *seen, struct tc_error *err)
{
    if (cpu >= CPU_SETSIZE || !CPU_ISSET(cpu, allowed)) {
        return tc_error_set(err, EINVAL,
                            "CPU %llu is not there or not allowed to this process; "
                            "taskset -pc $$ lists those that are",
                            (unsigned long long)cpu);
    }
    if (CPU_ISSET(cpu, seen)) {
        return tc_error_set(err, EINVAL, "CPU %llu is named twice", (unsigned long long)cpu);
    }
    CPU_SET(cpu, seen);
    return 0;
}

int tc_parse_cpus(const char *text, int *cpus, size_t most, size_t *count, struct tc_error *err)
{
    cpu_set_t allowed;
    cpu_set_t seen;
    CPU_ZERO(&seen);
    if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) {
        return tc_error_set(err, EINVAL, "cannot ask which CPUs are allowed: %s", strerror(errno));
    }
    *count = 0;
    for (const char *at = text;; at++) {
        uint64_t first = 0;
        uint64_t last = 0;
        at = digits(at, &first);
        last = first;
        if (at != NULL && *at == '-') {
            at = digits(at + 1, &last);
        }
        if (at == NULL || (*at != ',' && *at != '\0') || last < first) {
            return tc_error_set(err, EINVAL, "CPU list '%s': expected ids and ranges such as 0,2-3",
                                text);
        }
        for (uint64_t cpu = first; cpu <= last; cpu++) {
            int rc = add_cpu(cpu, &allowed, &seen, err);
            if (rc != 0) {
                return rc;
            }
            if (*count == most) {
                return tc_error_set(err, EINVAL, "CPU list '%s': more than %zu CPUs", text, most);
            }
            cpus[(*count)++] = (int)cpu;
        }
        if (*at == '\0') {
            return 0;
        }
    }
}

int tc_first_cpus(uint32_t n, int *cpus, struct tc_error *err)
{
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) {
        return tc_error_set(err, errno, "cannot ask which CPUs are allowed: %s", strerror(errno));
    }
    uint32_t found = 0;
    for (int cpu = 0; cpu < CPU_SETSIZE && found < n; cpu++) {
        if (CPU_ISSET((size_t)cpu, &allowed)) {
            cpus[found++] = cpu;
        }
    }
    return found == n ? 0
                      : tc_error_set(err, ENOTSUP,
                                     "%u CPUs: this process may use %u only; give fewer or widen "
                                     "its set (taskset -pc $$ shows it)",
                                     n, found);
}

int tc_parse_address(const char *text, struct sockaddr_storage *address, socklen_t *length,
                     struct tc_error *err)
{
    char host[INET6_ADDRSTRLEN + 1];
    const char *colon = strrchr(text, ':');
    uint64_t port = 0;
    const struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV,
                                   .ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    size_t size = colon != NULL ? (size_t)(colon - text) : 0;
    bool bracketed = size > 2 && text[0] == '[' && text[size - 1] == ']';
    const char *start = bracketed ? text + 1 : text;
    size -= bracketed ? 2 : 0;
    /* Without brackets, the last part of an IPv6 address would pass for a port. */
    bool ambiguous = !bracketed && size > 0 && memchr(start, ':', size) != NULL;
    if (size > 0 && size < sizeof(host) && !ambiguous) {
        memcpy(host, start, size);
        host[size] = '\0';
        if (tc_parse_count(colon + 1, 0, UINT16_MAX, &port, NULL) == 0 &&
            getaddrinfo(host, colon + 1, &hints, &found) == 0) {
            memcpy(address, found->ai_addr, found->ai_addrlen);
            *length = found->ai_addrlen;
            freeaddrinfo(found);
            return 0;
        }
    }
    return tc_error_set(err, EINVAL,
                        "address '%s': expected a numeric address and a port, such as "
                        "127.0.0.1:8443 or [::1]:0",
                        text);
}
