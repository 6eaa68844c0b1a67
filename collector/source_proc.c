#include "collector/source_proc.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "collector/procfs.h"

#define DISKS_MAX 64

enum { FILE_STAT, FILE_TIMERS, FILE_MEMINFO, FILE_NET_DEV, FILE_SNMP, FILES };

/* Files are opened once; each read is a pread into the one buffer, which was sized at open. */
struct proc_counters {
    struct tc_counters base;
    struct tc_cpus cpus;
    char interface[32];
    uint64_t tick_ns;
    int files[FILES];
    int disks[DISKS_MAX];
    size_t disks_count;
    struct tc_cpu_ticks *ticks;
    uint64_t *idle_fine_ns;
    char *buffer;
    size_t buffer_size;
};

uint64_t tc_proc_tick_ns(void)
{
    return UINT64_C(1000000000) / (uint64_t)sysconf(_SC_CLK_TCK);
}

/* The whole file into buffer, terminated; *length excludes the terminator. -ENOSPC: too small. */
static int read_all(int fd, char *buffer, size_t size, size_t *length)
{
    *length = 0;
    for (;;) {
        ssize_t got = pread(fd, buffer + *length, size - 1 - *length, (off_t)*length);
        if (got < 0) {
            return -errno;
        }
        if (got == 0) {
            break;
        }
        *length += (size_t)got;
        if (*length == size - 1) {
            return -ENOSPC;
        }
    }
    buffer[*length] = '\0';
    return 0;
}

static int read_file(struct proc_counters *proc, int file, struct tc_error *err)
{
    static const char *const names[] = {"/proc/stat", "/proc/timer_list", "/proc/meminfo",
                                        "/proc/net/dev", "/proc/net/snmp"};
    size_t length;
    int rc = read_all(proc->files[file], proc->buffer, proc->buffer_size, &length);
    return rc == 0 ? 0 : tc_error_set(err, -rc, "reading %s: %s", names[file], strerror(-rc));
}

/* Whether the file's fields can be parsed is known at open: reads may then only fail for good. */
static int grow_for(struct proc_counters *proc, int fd)
{
    size_t length;
    int rc;
    while ((rc = read_all(fd, proc->buffer, proc->buffer_size / 2, &length)) == -ENOSPC) {
        char *bigger = realloc(proc->buffer, proc->buffer_size * 2);
        if (bigger == NULL) {
            return -ENOMEM;
        }
        proc->buffer = bigger;
        proc->buffer_size *= 2;
    }
    return rc;
}

static void open_disks(struct proc_counters *proc)
{
    DIR *dir = opendir("/sys/block");
    if (dir == NULL) {
        return; /* the slot says so */
    }
    for (struct dirent *entry = readdir(dir); entry != NULL && proc->disks_count < DISKS_MAX;
         entry = readdir(dir)) {
        char path[PATH_MAX];
        /* Only what has a device behind it: loop and RAM disks count their backing's work again. */
        (void)snprintf(path, sizeof(path), "/sys/block/%s/device", entry->d_name);
        if (entry->d_name[0] == '.' || access(path, F_OK) != 0) {
            continue;
        }
        (void)snprintf(path, sizeof(path), "/sys/block/%s/stat", entry->d_name);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd >= 0) {
            proc->disks[proc->disks_count++] = fd;
        }
    }
    (void)closedir(dir);
}

static int open_files(struct proc_counters *proc, pid_t pid, struct tc_error *err)
{
    char process[32] = "self";
    if (pid > 0) {
        (void)snprintf(process, sizeof(process), "%d", pid);
    }
    static const struct {
        const char *name;
        int file;
        bool of_process;
    } paths[] = {{"stat", FILE_STAT, false},
                 {"meminfo", FILE_MEMINFO, false},
                 {"net/dev", FILE_NET_DEV, true},
                 {"net/snmp", FILE_SNMP, true}};
    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
        char path[64];
        (void)snprintf(path, sizeof(path), "/proc/%s%s%s", paths[i].of_process ? process : "",
                       paths[i].of_process ? "/" : "", paths[i].name);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0) {
            return tc_error_set(err, errno, "%s: %s; is /proc mounted?", path, strerror(errno));
        }
        proc->files[paths[i].file] = fd;
        int rc = grow_for(proc, fd);
        if (rc != 0) {
            return tc_error_set(err, -rc, "reading %s: %s", path, strerror(-rc));
        }
    }
    open_disks(proc);
    return 0;
}

static void slot_missing(struct tc_slot *slot, enum tc_status status, const char *reason)
{
    slot->status = status;
    (void)snprintf(slot->reason, sizeof(slot->reason), "%s", reason);
}

void tc_proc_name_slots(const struct tc_cpus *cpus, struct tc_slot *slots)
{
    static const char *const cpu_names[] = {"idle_ns",   "idle_fine_ns", "steal_ns",  "user_ns",
                                            "system_ns", "irq_ns",       "softirq_ns"};
    static const char *const system_names[] = {
        "mem_available_bytes", "net_rx_bytes",     "net_tx_bytes", "tcp_retransmits",
        "disk_queue",          "context_switches", "interrupts",   "procs_running"};
    size_t machine = tc_proc_system_slot(cpus->count, 0);
    for (size_t i = 0; i < machine + TC_PROC_SYSTEM_VALUES; i++) {
        bool per_cpu = i < machine;
        slots[i].mode = TC_MODE_BOTH;
        slots[i].cpu = per_cpu ? cpus->ids[i / TC_PROC_CPU_VALUES] : TC_SLOT_NO_CPU;
        (void)snprintf(slots[i].event, sizeof(slots[i].event), "%s",
                       per_cpu ? cpu_names[i % TC_PROC_CPU_VALUES] : system_names[i - machine]);
    }
}

static void name_slots(struct proc_counters *proc)
{
    tc_proc_name_slots(&proc->cpus, proc->base.slots);
    if (proc->disks_count == 0) {
        slot_missing(
            &proc->base.slots[tc_proc_system_slot(proc->cpus.count, TC_PROC_DISK_QUEUE_MS)],
            TC_STATUS_UNSUPPORTED, "no disk in /sys/block");
    }
}

/* What grow_for() left in the buffer is parsed: the kernel makes this text at some expense. */
static int parse_timers(struct proc_counters *proc, int fd, struct tc_error *err)
{
    int rc = grow_for(proc, fd);
    return rc == 0 ? tc_procfs_idle_ns(proc->buffer, &proc->cpus, proc->idle_fine_ns, err)
                   : tc_error_set(err, -rc, "reading /proc/timer_list: %s", strerror(-rc));
}

/* The fine idle clock is there for root only, and only where the kernel is tickless. */
static void open_timers(struct proc_counters *proc)
{
    struct tc_error err = {"/proc/timer_list cannot be read: it is root's"};
    int fd = open("/proc/timer_list", O_RDONLY | O_CLOEXEC);
    if (fd >= 0 && parse_timers(proc, fd, &err) == 0) {
        proc->files[FILE_TIMERS] = fd;
        return;
    }
    for (size_t i = 0; i < proc->cpus.count; i++) {
        slot_missing(&proc->base.slots[tc_proc_cpu_slot(i, TC_PROC_IDLE_FINE)],
                     fd < 0 ? TC_STATUS_NOT_PERMITTED : TC_STATUS_UNSUPPORTED, err.message);
    }
    if (fd >= 0) {
        (void)close(fd);
    }
}

static void proc_close(struct tc_counters *counters)
{
    struct proc_counters *proc = (struct proc_counters *)counters;
    if (proc == NULL) {
        return;
    }
    for (int i = 0; i < FILES; i++) {
        if (proc->files[i] >= 0) {
            (void)close(proc->files[i]);
        }
    }
    for (size_t i = 0; i < proc->disks_count; i++) {
        (void)close(proc->disks[i]);
    }
    free(proc->base.slots);
    free(proc->ticks);
    free(proc->idle_fine_ns);
    free(proc->buffer);
    free(proc);
}

static int proc_open(struct tc_counters **counters, const struct tc_source_request *request,
                     struct tc_error *err)
{
    struct proc_counters *proc = calloc(1, sizeof(*proc));
    if (proc == NULL) {
        return tc_error_set(err, ENOMEM, "out of memory for the system counters");
    }
    proc->base.source = &tc_source_proc;
    proc->cpus = *request->cpus;
    proc->tick_ns = tc_proc_tick_ns();
    if (request->interface != NULL) {
        (void)snprintf(proc->interface, sizeof(proc->interface), "%s", request->interface);
    }
    for (int i = 0; i < FILES; i++) {
        proc->files[i] = -1;
    }
    proc->buffer_size = 65536;
    proc->buffer = malloc(proc->buffer_size);
    proc->base.slots_count = tc_proc_system_slot(proc->cpus.count, TC_PROC_SYSTEM_VALUES);
    proc->base.slots = calloc(proc->base.slots_count, sizeof(*proc->base.slots));
    proc->ticks = calloc(proc->cpus.count, sizeof(*proc->ticks));
    proc->idle_fine_ns = calloc(proc->cpus.count, sizeof(*proc->idle_fine_ns));
    int rc = proc->buffer == NULL || proc->base.slots == NULL || proc->ticks == NULL ||
                     proc->idle_fine_ns == NULL
                 ? tc_error_set(err, ENOMEM, "out of memory for the system counters")
                 : open_files(proc, request->pid, err);
    if (rc != 0) {
        proc_close(&proc->base);
        return rc;
    }
    name_slots(proc);
    open_timers(proc);
    *counters = &proc->base;
    return 0;
}

static int read_cpus(struct proc_counters *proc, enum tc_depth depth, struct tc_reading *readings,
                     struct tc_error *err)
{
    int rc = read_file(proc, FILE_STAT, err);
    if (rc == 0) {
        rc = tc_procfs_cpu_ticks(proc->buffer, &proc->cpus, proc->ticks, err);
    }
    for (size_t i = 0; rc == 0 && i < proc->cpus.count; i++) {
        struct tc_reading *cpu = &readings[tc_proc_cpu_slot(i, 0)];
        cpu[TC_PROC_IDLE].raw = proc->ticks[i].idle * proc->tick_ns;
        if (depth == TC_DEPTH_END) {
            cpu[TC_PROC_STEAL].raw = proc->ticks[i].steal * proc->tick_ns;
            cpu[TC_PROC_USER].raw = proc->ticks[i].user * proc->tick_ns;
            cpu[TC_PROC_SYSTEM].raw = proc->ticks[i].system * proc->tick_ns;
            cpu[TC_PROC_IRQ].raw = proc->ticks[i].irq * proc->tick_ns;
            cpu[TC_PROC_SOFTIRQ].raw = proc->ticks[i].softirq * proc->tick_ns;
        }
    }
    return rc;
}

static int read_fine_idle(struct proc_counters *proc, struct tc_reading *readings,
                          struct tc_error *err)
{
    if (proc->files[FILE_TIMERS] < 0) {
        return 0;
    }
    int rc = read_file(proc, FILE_TIMERS, err);
    if (rc == 0) {
        rc = tc_procfs_idle_ns(proc->buffer, &proc->cpus, proc->idle_fine_ns, err);
    }
    for (size_t i = 0; rc == 0 && i < proc->cpus.count; i++) {
        readings[tc_proc_cpu_slot(i, TC_PROC_IDLE_FINE)].raw = proc->idle_fine_ns[i];
    }
    return rc;
}

static int read_disks(struct proc_counters *proc, uint64_t *queue_ms, struct tc_error *err)
{
    *queue_ms = 0;
    for (size_t i = 0; i < proc->disks_count; i++) {
        size_t length;
        uint64_t one_ms;
        int rc = read_all(proc->disks[i], proc->buffer, proc->buffer_size, &length);
        if (rc != 0) {
            return tc_error_set(err, -rc, "reading /sys/block/*/stat: %s", strerror(-rc));
        }
        rc = tc_procfs_disk_queue_ms(proc->buffer, &one_ms, err);
        if (rc != 0) {
            return rc;
        }
        *queue_ms += one_ms;
    }
    return 0;
}

static int read_network(struct proc_counters *proc, struct tc_reading *system, struct tc_error *err)
{
    const char *interface = proc->interface[0] != '\0' ? proc->interface : NULL;
    int rc = read_file(proc, FILE_NET_DEV, err);
    if (rc == 0) {
        rc = tc_procfs_net_bytes(proc->buffer, interface, &system[TC_PROC_NET_RX_BYTES].raw,
                                 &system[TC_PROC_NET_TX_BYTES].raw, err);
    }
    if (rc == 0) {
        rc = read_file(proc, FILE_SNMP, err);
    }
    return rc != 0 ? rc
                   : tc_procfs_snmp(proc->buffer, "Tcp:", "RetransSegs",
                                    &system[TC_PROC_TCP_RETRANSMITS].raw, err);
}

static int proc_read(struct tc_counters *counters, enum tc_depth depth, struct tc_reading *readings,
                     struct tc_error *err)
{
    struct proc_counters *proc = (struct proc_counters *)counters;
    int rc = read_cpus(proc, depth, readings, err);
    if (rc != 0 || depth == TC_DEPTH_SAMPLE) {
        return rc;
    }
    struct tc_reading *system = &readings[tc_proc_system_slot(proc->cpus.count, 0)];
    /* /proc/stat is still in the buffer. */
    if ((rc = tc_procfs_keyed(proc->buffer, "ctxt", &system[TC_PROC_CONTEXT_SWITCHES].raw, err)) ||
        (rc = tc_procfs_keyed(proc->buffer, "intr", &system[TC_PROC_INTERRUPTS].raw, err)) ||
        (rc = tc_procfs_keyed(proc->buffer, "procs_running", &system[TC_PROC_PROCS_RUNNING].raw,
                              err)) ||
        (rc = read_fine_idle(proc, readings, err)) || (rc = read_network(proc, system, err)) ||
        (rc = read_disks(proc, &system[TC_PROC_DISK_QUEUE_MS].raw, err)) ||
        (rc = read_file(proc, FILE_MEMINFO, err)) ||
        (rc = tc_procfs_keyed(proc->buffer,
                              "MemAvailable:", &system[TC_PROC_MEM_AVAILABLE_BYTES].raw, err))) {
        return rc;
    }
    system[TC_PROC_MEM_AVAILABLE_BYTES].raw *= 1024;
    return 0;
}

/* The kernel counts all the time: there is nothing to start or stop. */
static int proc_start_stop(struct tc_counters *counters, struct tc_error *err)
{
    (void)counters;
    (void)err;
    return 0;
}

void tc_proc_report(const struct tc_counters *counters, struct tc_source_report *report)
{
    const struct tc_slot *fine = &counters->slots[tc_proc_cpu_slot(0, TC_PROC_IDLE_FINE)];
    *report = (struct tc_source_report){.available = true, .scope = TC_SCOPE_CPU};
    (void)snprintf(report->reason, sizeof(report->reason), "%s", fine->reason);
}

static void proc_probe(int cpu, struct tc_source_report *report)
{
    const struct tc_cpus cpus = {.count = 1, .ids = {cpu}};
    const struct tc_source_request request = {.cpus = &cpus};
    struct tc_counters *counters = NULL;
    struct tc_error err;
    *report = (struct tc_source_report){.scope = TC_SCOPE_CPU};
    if (proc_open(&counters, &request, &err) != 0 || counters == NULL) {
        (void)snprintf(report->reason, sizeof(report->reason), "%.*s", TC_REASON_MAX - 1,
                       err.message);
        return;
    }
    tc_proc_report(counters, report);
    proc_close(counters);
}

const struct tc_source tc_source_proc = {
    .name = "proc",
    .probe = proc_probe,
    .open = proc_open,
    .start = proc_start_stop,
    .read = proc_read,
    .stop = proc_start_stop,
    .close = proc_close,
};

struct process {
    pid_t pid;
    pid_t parent;
    uint64_t rss_pages;
};

static int list_processes(struct process **list, size_t *count, struct tc_error *err)
{
    DIR *dir = opendir("/proc");
    if (dir == NULL) {
        return tc_error_set(err, errno, "/proc: %s", strerror(errno));
    }
    size_t room = 0;
    *list = NULL;
    *count = 0;
    for (struct dirent *entry = readdir(dir); entry != NULL; entry = readdir(dir)) {
        char path[sizeof(entry->d_name) + 16];
        char text[1024];
        size_t length;
        struct process one = {.pid = (pid_t)strtol(entry->d_name, NULL, 10)};
        (void)snprintf(path, sizeof(path), "/proc/%s/stat", entry->d_name);
        int fd = one.pid > 0 ? open(path, O_RDONLY | O_CLOEXEC) : -1;
        if (fd < 0) {
            continue; /* not a process, or gone meanwhile */
        }
        int rc = read_all(fd, text, sizeof(text), &length);
        (void)close(fd);
        if (rc != 0 || tc_procfs_pid_stat(text, &one.parent, &one.rss_pages, NULL) != 0) {
            continue;
        }
        if (*count == room) {
            room = room == 0 ? 256 : room * 2;
            struct process *bigger = reallocarray(*list, room, sizeof(**list));
            if (bigger == NULL) {
                free(*list);
                (void)closedir(dir);
                return tc_error_set(err, ENOMEM, "out of memory for the list of processes");
            }
            *list = bigger;
        }
        (*list)[(*count)++] = one;
    }
    (void)closedir(dir);
    return 0;
}

static bool is_below(const struct process *list, size_t count, pid_t pid, pid_t root)
{
    /* As many steps as processes: parents of a list read while it changes may form a ring. */
    for (size_t step = 0; step < count && pid > 1; step++) {
        size_t i = 0;
        while (i < count && list[i].pid != pid) {
            i++;
        }
        if (i == count) {
            return false;
        }
        pid = list[i].parent;
        if (pid == root) {
            return true;
        }
    }
    return false;
}

int tc_proc_tree_rss(pid_t root, uint64_t *bytes, struct tc_error *err)
{
    struct process *list = NULL;
    size_t count = 0;
    int rc = list_processes(&list, &count, err);
    if (rc != 0) {
        return rc;
    }
    *bytes = 0;
    for (size_t i = 0; i < count; i++) {
        if (is_below(list, count, list[i].pid, root)) {
            *bytes += list[i].rss_pages * (uint64_t)sysconf(_SC_PAGESIZE);
        }
    }
    free(list);
    return 0;
}
