/* What the kernel means by refusing an event, in words that name the remedy. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "collector/source_perf.h"

static enum tc_status explain_refusal(const struct tc_event *event, enum tc_scope scope,
                                      char *reason, size_t size)
{
    if (scope == TC_SCOPE_CPU) {
        (void)snprintf(reason, size,
                       "%s:%s may not be counted on whole CPUs: run as root, give CAP_PERFMON, or "
                       "set kernel.perf_event_paranoid to 0",
                       event->name, tc_mode_name(event->mode));
    } else {
        (void)snprintf(reason, size,
                       "%s:%s may not be counted by this user: the kernel's part needs "
                       "kernel.perf_event_paranoid at 1 or less, or CAP_PERFMON, or root",
                       event->name, tc_mode_name(event->mode));
    }
    return TC_STATUS_NOT_PERMITTED;
}

enum tc_status tc_perf_explain(int code, const struct tc_event *event, enum tc_scope scope,
                               char *reason, size_t size)
{
    switch (code) {
    case EACCES:
    case EPERM:
        return explain_refusal(event, scope, reason, size);
    case ENOENT:
        (void)snprintf(reason, size,
                       "no PMU here counts %s: a virtual machine needs its host's PMU passed "
                       "through, else measure on a simulated machine",
                       event->name);
        return TC_STATUS_UNSUPPORTED;
    case EOPNOTSUPP:
        (void)snprintf(reason, size, "this PMU cannot count %s:%s; ask for another mode (u, k, uk)",
                       event->name, tc_mode_name(event->mode));
        return TC_STATUS_UNSUPPORTED;
    case EINVAL:
        (void)snprintf(reason, size,
                       "the kernel refuses %s:%s beside the others of its set: name fewer events, "
                       "or another mode",
                       event->name, tc_mode_name(event->mode));
        return TC_STATUS_UNSUPPORTED;
    case ENODEV:
        (void)snprintf(reason, size, "the CPU is offline or has no counter for %s; choose another",
                       event->name);
        return TC_STATUS_UNSUPPORTED;
    case ENOSYS:
        (void)snprintf(reason, size,
                       "this kernel is built without perf events, or a sandbox "
                       "forbids perf_event_open");
        return TC_STATUS_UNSUPPORTED;
    case EBUSY:
        (void)snprintf(reason, size, "another program holds the counter of %s alone; stop it",
                       event->name);
        return TC_STATUS_FAILED;
    case EMFILE:
    case ENFILE:
        (void)snprintf(reason, size,
                       "out of file descriptors (one per CPU and event): raise "
                       "`ulimit -n` or name fewer events");
        return TC_STATUS_FAILED;
    default:
        (void)snprintf(reason, size, "perf_event_open of %s: %s", event->name, strerror(code));
        return TC_STATUS_FAILED;
    }
}
