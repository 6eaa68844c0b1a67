#include "collector/procfs.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *next_line(const char *line)
{
    const char *end = strchr(line, '\n');
    return end == NULL ? NULL : end + 1;
}

/* Reads `count` numbers that stand on one line from *text on and moves *text behind them. */
static bool numbers(const char **text, uint64_t *values, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        while (**text == ' ' || **text == '\t') {
            (*text)++;
        }
        if (!isdigit((unsigned char)**text)) {
            return false;
        }
        char *end;
        values[i] = strtoull(*text, &end, 10);
        *text = end;
    }
    return true;
}

int tc_procfs_cpu_ticks(const char *text, const struct tc_cpus *cpus, struct tc_cpu_ticks *ticks,
                        struct tc_error *err)
{
    size_t found = 0;
    /* CPUs stand first and ascending, as in the set: one pass, and the long rest is not looked at.
     */
    for (const char *line = text;
         line != NULL && strncmp(line, "cpu", 3) == 0 && found < cpus->count;
         line = next_line(line)) {
        const char *at = line + 3;
        uint64_t id;
        uint64_t field[8];
        if (*at == ' ') {
            continue; /* the sum over all CPUs */
        }
        if (!numbers(&at, &id, 1) || id != (uint64_t)cpus->ids[found]) {
            continue;
        }
        if (!numbers(&at, field, 8)) {
            return tc_error_set(err, EBADMSG, "/proc/stat: cpu%d has less than 8 numbers",
                                cpus->ids[found]);
        }
        ticks[found++] = (struct tc_cpu_ticks){.user = field[0] + field[1],
                                               .system = field[2],
                                               .idle = field[3] + field[4],
                                               .irq = field[5],
                                               .softirq = field[6],
                                               .steal = field[7]};
    }
    return found == cpus->count
               ? 0
               : tc_error_set(err, ENODATA, "/proc/stat: no line for CPU %d; did it go offline?",
                              cpus->ids[found]);
}

/* The number behind ":" on a line that starts with field. */
static bool field_value(const char *line, const char *field, uint64_t *value)
{
    size_t length = strlen(field);
    if (strncmp(line, field, length) != 0) {
        return false;
    }
    const char *at = line + length;
    while (*at == ' ') {
        at++;
    }
    if (*at++ != ':') {
        return false;
    }
    return numbers(&at, value, 1);
}

int tc_procfs_idle_ns(const char *text, const struct tc_cpus *cpus, uint64_t *idle_ns,
                      struct tc_error *err)
{
    size_t found = 0;
    bool in_cpu = false;
    uint64_t id;
    uint64_t sleep_ns = 0;
    uint64_t iowait_ns = 0;
    for (const char *line = text; line != NULL && *line != '\0' && found < cpus->count;
         line = next_line(line)) {
        if (field_value(line, "cpu", &id)) {
            in_cpu = id == (uint64_t)cpus->ids[found];
        } else if (in_cpu && field_value(line, "  .idle_sleeptime", &sleep_ns)) {
            idle_ns[found] = sleep_ns;
        } else if (in_cpu && field_value(line, "  .iowait_sleeptime", &iowait_ns)) {
            idle_ns[found++] = sleep_ns + iowait_ns;
            in_cpu = false;
        }
    }
    return found == cpus->count
               ? 0
               : tc_error_set(err, ENODATA, "/proc/timer_list: no idle_sleeptime of CPU %d",
                              cpus->ids[found]);
}

int tc_procfs_keyed(const char *text, const char *key, uint64_t *value, struct tc_error *err)
{
    size_t length = strlen(key);
    for (const char *line = text; line != NULL; line = next_line(line)) {
        if (strncmp(line, key, length) != 0 || line[length] != ' ') {
            continue;
        }
        const char *at = line + length;
        return numbers(&at, value, 1) ? 0 : tc_error_set(err, EBADMSG, "no number after '%s'", key);
    }
    return tc_error_set(err, ENODATA, "no line '%s'", key);
}

int tc_procfs_net_bytes(const char *text, const char *interface, uint64_t *rx, uint64_t *tx,
                        struct tc_error *err)
{
    bool found = false;
    *rx = 0;
    *tx = 0;
    for (const char *line = text; line != NULL; line = next_line(line)) {
        const char *name = line + strspn(line, " ");
        size_t length = strcspn(name, ":\n");
        if (name[length] != ':' || (interface != NULL && (strlen(interface) != length ||
                                                          strncmp(name, interface, length) != 0))) {
            continue; /* a heading, or another interface */
        }
        const char *at = name + length + 1;
        uint64_t field[9];
        if (!numbers(&at, field, 9)) {
            return tc_error_set(err, EBADMSG, "/proc/net/dev: '%.*s' has less than 9 numbers",
                                (int)length, name);
        }
        *rx += field[0];
        *tx += field[8];
        found = true;
    }
    return found ? 0
                 : tc_error_set(err, ENODATA, "/proc/net/dev: no interface '%s'",
                                interface == NULL ? "(any)" : interface);
}

/* Index of the word `name` among the line's words behind the first; -1 where it is not there. */
static int word_index(const char *line, const char *name)
{
    size_t length = strlen(name);
    int index = -1; /* of the word at hand; the protocol itself is -1 */
    while (*line != '\0' && *line != '\n') {
        size_t word = strcspn(line, " \n");
        if (index >= 0 && word == length && strncmp(line, name, length) == 0) {
            return index;
        }
        line += word;
        line += strspn(line, " ");
        index++;
    }
    return -1;
}

int tc_procfs_snmp(const char *text, const char *protocol, const char *name, uint64_t *value,
                   struct tc_error *err)
{
    size_t length = strlen(protocol);
    for (const char *line = text; line != NULL; line = next_line(line)) {
        if (strncmp(line, protocol, length) != 0) {
            continue;
        }
        int index = word_index(line, name);
        const char *at = next_line(line);
        if (index < 0 || at == NULL || strncmp(at, protocol, length) != 0) {
            break;
        }
        at += length;
        /* Some values are negative (MaxConn): words are skipped as words. */
        for (int i = 0; i < index; i++) {
            at += strspn(at, " ");
            at += strcspn(at, " \n");
        }
        return numbers(&at, value, 1)
                   ? 0
                   : tc_error_set(err, EBADMSG, "/proc/net/snmp: %s%s is no number", protocol,
                                  name);
    }
    return tc_error_set(err, ENODATA, "/proc/net/snmp: no %s%s", protocol, name);
}

int tc_procfs_disk_queue_ms(const char *text, uint64_t *value, struct tc_error *err)
{
    uint64_t field[11];
    if (!numbers(&text, field, 11)) {
        return tc_error_set(err, EBADMSG, "/sys/block/*/stat: less than 11 numbers");
    }
    *value = field[10];
    return 0;
}

int tc_procfs_pid_stat(const char *text, pid_t *parent, uint64_t *rss_pages, struct tc_error *err)
{
    const char *close = strrchr(text, ')');
    long long ppid;
    uint64_t pages;
    /* Behind the command: state ppid ... (19 more) ... rss, which is field 24 of the line. */
    if (close == NULL ||
        sscanf(close + 1,
               " %*c %lld %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s "
               "%*s %" SCNu64,
               &ppid, &pages) != 2) {
        return tc_error_set(err, EBADMSG, "/proc/PID/stat: not its format");
    }
    *parent = (pid_t)ppid;
    *rss_pages = pages;
    return 0;
}
