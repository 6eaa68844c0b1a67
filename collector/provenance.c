#include "collector/provenance.h"

#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysinfo.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#include <x86intrin.h>
#endif

#include "collector/sysfile.h"

#define CPU_DIR "/sys/devices/system/cpu"

#if defined(__x86_64__) || defined(__i386__)
static uint64_t tsc_from_cpuid(const char **how)
{
    unsigned a;
    unsigned b;
    unsigned c;
    unsigned d;
    if (__get_cpuid_count(0x15, 0, &a, &b, &c, &d) && a != 0 && b != 0 && c != 0) {
        *how = "cpuid leaf 0x15";
        return (uint64_t)c * b / a;
    }
    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & (1U << 31)) == 0) {
        return 0; /* no hypervisor: its leaves mean nothing */
    }
    __cpuid(0x40000000, a, b, c, d);
    if (a >= 0x40000010 && a < 0x40010000) {
        __cpuid(0x40000010, a, b, c, d);
        *how = "cpuid leaf 0x40000010 (hypervisor)";
        return (uint64_t)a * 1000;
    }
    return 0;
}

static uint64_t raw_ns(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC_RAW, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

/* TSC and clock at the same instant: of several tries the one that was least disturbed. */
static void read_both(uint64_t *tsc, uint64_t *ns)
{
    uint64_t best = UINT64_MAX;
    for (int i = 0; i < 16; i++) {
        uint64_t before = __rdtsc();
        uint64_t at_ns = raw_ns();
        uint64_t after = __rdtsc();
        if (after - before < best) {
            best = after - before;
            *tsc = before + (after - before) / 2;
            *ns = at_ns;
        }
    }
}

uint64_t tc_provenance_tsc_hz(const char **how)
{
    const struct timespec pause = {.tv_nsec = 50000000};
    uint64_t tsc[2] = {0};
    uint64_t ns[2] = {0};
    uint64_t hz = tsc_from_cpuid(how);
    if (hz != 0) {
        return hz;
    }
    read_both(&tsc[0], &ns[0]);
    (void)nanosleep(&pause, NULL);
    read_both(&tsc[1], &ns[1]);
    *how = "measured against CLOCK_MONOTONIC_RAW over 50 ms";
    return (uint64_t)((double)(tsc[1] - tsc[0]) * 1e9 / (double)(ns[1] - ns[0]));
}
#else
uint64_t tc_provenance_tsc_hz(const char **how)
{
    *how = "this processor has no time stamp counter";
    return 0;
}
#endif

#define CPUINFO_BYTES 8192 /* the first processor's lines, which come first */

/* Read once: the kernel asks every CPU for its frequency each time. */
static void read_cpuinfo(char text[CPUINFO_BYTES])
{
    FILE *file = fopen("/proc/cpuinfo", "re");
    size_t length = file == NULL ? 0 : fread(text, 1, CPUINFO_BYTES - 1, file);
    text[length] = '\0';
    if (file != NULL) {
        (void)fclose(file);
    }
}

/* The value behind "name : " of the first processor; NULL where there is none. */
static json_t *cpuinfo(const char *text, const char *name)
{
    size_t length = strlen(name);
    for (const char *line = text; *line != '\0'; line += strspn(line, "\n")) {
        size_t end = strcspn(line, "\n");
        const char *colon = memchr(line, ':', end);
        if (strncmp(line, name, length) == 0 && strspn(line + length, "\t :") > 0 &&
            colon != NULL) {
            const char *value = colon + 1 + strspn(colon + 1, " ");
            return json_stringn(value, (size_t)(line + end - value));
        }
        line += end;
    }
    return NULL;
}

static json_t *cpu_model(const char *text)
{
    json_t *value = cpuinfo(text, "model name");
    return value != NULL ? value : json_null();
}

/* Vendor, family, model and stepping tell the metric dictionary which processor it is. */
static json_t *cpu_identity(const char *text)
{
    static const char *const names[] = {"vendor_id",       "cpu family", "model",      "stepping",
                                        "CPU implementer", "CPU part",   "CPU variant"};
    json_t *identity = json_object();
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        json_t *value = cpuinfo(text, names[i]);
        if (value != NULL && json_object_set_new(identity, names[i], value) != 0) {
            json_decref(identity);
            return NULL;
        }
    }
    return identity;
}

static json_t *one_cache(int index)
{
    char path[128];
    char size[32];
    char *unit;
    (void)snprintf(path, sizeof(path), CPU_DIR "/cpu0/cache/index%d/size", index);
    if (!tc_sysfile_read(path, size, sizeof(size))) {
        return NULL;
    }
    long long bytes = strtoll(size, &unit, 10) * (*unit == 'K' ? 1024 : *unit == 'M' ? 1048576 : 1);
    (void)snprintf(path, sizeof(path), CPU_DIR "/cpu0/cache/index%d/level", index);
    json_t *level = tc_sysfile_number(path);
    (void)snprintf(path, sizeof(path), CPU_DIR "/cpu0/cache/index%d/type", index);
    json_t *type = tc_sysfile_line(path);
    (void)snprintf(path, sizeof(path), CPU_DIR "/cpu0/cache/index%d/shared_cpu_list", index);
    return json_pack("{s:o, s:o, s:I, s:o}", "level", level, "type", type, "bytes",
                     (json_int_t)bytes, "shared_cpus", tc_sysfile_line(path));
}

static json_t *caches(void)
{
    json_t *list = json_array();
    for (int index = 0; index < 16; index++) {
        json_t *cache = one_cache(index);
        if (cache == NULL) {
            break;
        }
        if (json_array_append_new(list, cache) != 0) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

static json_t *mitigations(void)
{
    json_t *object = json_object();
    DIR *dir = opendir(CPU_DIR "/vulnerabilities");
    if (dir == NULL) {
        json_decref(object);
        return json_null();
    }
    for (struct dirent *entry = readdir(dir); entry != NULL; entry = readdir(dir)) {
        char path[512];
        (void)snprintf(path, sizeof(path), CPU_DIR "/vulnerabilities/%s", entry->d_name);
        if (entry->d_name[0] != '.' &&
            json_object_set_new(object, entry->d_name, tc_sysfile_line(path)) != 0) {
            break;
        }
    }
    (void)closedir(dir);
    return object;
}

static json_t *kernel(void)
{
    struct utsname name;
    return uname(&name) == 0
               ? json_sprintf("%s %s %s %s", name.sysname, name.release, name.version, name.machine)
               : json_null();
}

static json_t *memory_bytes(void)
{
    struct sysinfo info;
    return sysinfo(&info) == 0 ? json_integer((json_int_t)info.totalram * info.mem_unit)
                               : json_null();
}

static json_t *hypervisor(void)
{
#if defined(__x86_64__) || defined(__i386__)
    unsigned a;
    unsigned b;
    unsigned c;
    unsigned d;
    if (__get_cpuid(1, &a, &b, &c, &d) && (c & (1U << 31)) != 0) {
        char text[13] = "";
        __cpuid(0x40000000, a, b, c, d);
        memcpy(text, &b, 4);
        memcpy(text + 4, &c, 4);
        memcpy(text + 8, &d, 4);
        return json_string(text);
    }
#endif
    return json_null();
}

json_t *tc_provenance_build(uint64_t tsc_hz, const char *tsc_how)
{
    char text[CPUINFO_BYTES];
    read_cpuinfo(text);
    /* No table of ours maps models to microarchitectures: the analysis does, from cpu_identity. */
    return json_pack(
        "{s:o, s:o, s:n, s:i, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:s, s:o, s:o, s:o, s:o}",
        "cpu_model", cpu_model(text), "cpu_identity", cpu_identity(text), "microarchitecture",
        "cpus_online", (int)sysconf(_SC_NPROCESSORS_ONLN), "caches", caches(), "kernel", kernel(),
        "mitigations", mitigations(), "governor",
        tc_sysfile_line(CPU_DIR "/cpu0/cpufreq/scaling_governor"), "smt",
        tc_sysfile_line(CPU_DIR "/smt/control"), "numa_nodes",
        tc_sysfile_line("/sys/devices/system/node/online"), "tsc_hz",
        tsc_hz == 0 ? json_null() : json_integer((json_int_t)tsc_hz), "tsc_source", tsc_how,
        "memory_bytes", memory_bytes(), "hypervisor", hypervisor(), "perf_event_paranoid",
        tc_sysfile_number("/proc/sys/kernel/perf_event_paranoid"), "clocksource",
        tc_sysfile_line("/sys/devices/system/clocksource/clocksource0/current_clocksource"));
}
