/* Parsers of the kernel's text on any text: within its bounds, and with an error or the values that
 * the text has. */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "collector/procfs.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t length);

static void check(bool holds)
{
    if (!holds) {
        abort();
    }
}

static void try_all(const char *text)
{
    const struct tc_cpus cpus = {.count = 3, .ids = {0, 1, 10}};
    struct tc_cpu_ticks ticks[3];
    uint64_t values[3];
    uint64_t other;
    pid_t parent;
    struct tc_error err;
    int codes[] = {
        tc_procfs_cpu_ticks(text, &cpus, ticks, &err),
        tc_procfs_idle_ns(text, &cpus, values, &err),
        tc_procfs_keyed(text, "ctxt", values, &err),
        tc_procfs_keyed(text, "MemAvailable:", values, &err),
        tc_procfs_net_bytes(text, "server0", values, &other, &err),
        tc_procfs_net_bytes(text, NULL, values, &other, &err),
        tc_procfs_snmp(text, "Tcp:", "RetransSegs", values, &err),
        tc_procfs_disk_queue_ms(text, values, &err),
        tc_procfs_pid_stat(text, &parent, values, &err),
    };
    for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]); i++) {
        check(codes[i] == 0 || codes[i] == -ENODATA || codes[i] == -EBADMSG);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t length)
{
    /* A block of its own, so that a read beyond it is seen. */
    char *text = malloc(length + 1);
    check(text != NULL);
    memcpy(text, data, length);
    text[length] = '\0';
    try_all(text);
    free(text);
    return 0;
}
