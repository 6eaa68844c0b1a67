/* What the kernel means by refusing an event, in words that name the remedy. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "collector/source_perf.h"

static void explain_refusal(const struct tc_event *event, enum tc_scope scope, char *reason,
                            size_t size)
{
    if (scope == TC_SCOPE_CPU) {
        (void)snprintf(reason, size,
                       "%s:%s may not be counted on whole CPUs: run as root, `setcap "
                       "cap_perfmon+ep` the collector, or `sysctl kernel.perf_event_paranoid=0`",
                       event->name, tc_mode_name(event->mode));
        return;
    }
    bool kernel = (event->mode & TC_MODE_KERNEL) != 0;
    (void)snprintf(reason, size,
                   "%s:%s may not be counted by this user: %s needs root, CAP_PERFMON or `sysctl "
                   "kernel.perf_event_paranoid=%d` (or less)",
                   event->name, tc_mode_name(event->mode),
                   kernel ? "the kernel's part" : "even user mode", kernel ? 1 : 2);
}

static enum tc_status status_of(int code)
{
    switch (code) {
    case EACCES:
    case EPERM:
        return TC_STATUS_NOT_PERMITTED;
    case ENOENT:
    case EOPNOTSUPP:
    case EINVAL:
    case ENODEV:
    case ENOSYS:
        return TC_STATUS_UNSUPPORTED;
    default:
        return TC_STATUS_FAILED;
    }
}

enum tc_status tc_perf_explain(int code, const struct tc_event *event, enum tc_scope scope,
                               char *reason, size_t size)
{
    const char *name = event->name;
    const char *mode = tc_mode_name(event->mode);
    switch (code) {
    case EACCES:
        explain_refusal(event, scope, reason, size);
        break;
    case EPERM:
        (void)snprintf(reason, size,
                       "%s:%s is forbidden by a sandbox or security module: give CAP_PERFMON, and "
                       "in a container `--cap-add PERFMON --security-opt seccomp=unconfined`",
                       name, mode);
        break;
    case ENOENT:
        (void)snprintf(reason, size,
                       "no PMU here counts %s: a virtual machine needs its host's PMU passed "
                       "through (QEMU: `-cpu host,pmu=on`), else measure on a simulated machine",
                       name);
        break;
    case EOPNOTSUPP:
        (void)snprintf(reason, size, "this PMU cannot count %s:%s; ask for another mode (u, k, uk)",
                       name, mode);
        break;
    case EINVAL:
        (void)snprintf(reason, size,
                       "the kernel refuses %s:%s beside the others of its set: name fewer events, "
                       "or another mode",
                       name, mode);
        break;
    case ENODEV:
        (void)snprintf(reason, size,
                       "the CPU is offline or has no counter for %s: choose another, or `echo 1 > "
                       "/sys/devices/system/cpu/cpuN/online`",
                       name);
        break;
    case ENOSYS:
        (void)snprintf(reason, size,
                       "this kernel is built without perf events (CONFIG_PERF_EVENTS), or a "
                       "sandbox hides perf_event_open");
        break;
    case EBUSY:
        (void)snprintf(reason, size,
                       "another program holds the counter of %s alone: stop it; `find "
                       "/proc/[0-9]*/fd -lname '*perf_event*'` names it",
                       name);
        break;
    case EMFILE:
    case ENFILE:
        (void)snprintf(reason, size,
                       "out of file descriptors (one per CPU and event): `ulimit -n 65536`, or "
                       "name fewer events");
        break;
    default:
        (void)snprintf(reason, size, "perf_event_open of %s: %s", name, strerror(code));
        break;
    }
    return status_of(code);
}
