#include "collector/source_softpmu.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "collector/source_proc.h"
#include "collector/tests/check.h"
#include "collector/tests/page_writer.h"

#define CPUS  2
#define STEPS 1000

struct fixture {
    int fd;
    struct tc_softpmu_page *page; /* the writer's mapping */
    struct tc_softpmu softpmu;
    struct tc_counters *counters;
    struct tc_counters *system;
    struct tc_reading *begin;
    struct tc_reading *end;
};

static const struct tc_cpus cpus = {.count = CPUS, .ids = {0, 1}};

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    assert_non_null(f);
    f->fd = memfd_create("page", MFD_CLOEXEC);
    f->page = page_writer_make(f->fd, CPUS);
    assert_non_null(f->page);
    assert_int_equal(tc_softpmu_map(&f->softpmu, f->fd, CPUS, NULL), 0);
    const struct tc_source_request request = {.cpus = &cpus, .softpmu = &f->softpmu};
    assert_int_equal(tc_source_softpmu.open(&f->counters, &request, NULL), 0);
    assert_int_equal(tc_source_softpmu_system.open(&f->system, &request, NULL), 0);
    f->begin = calloc(f->counters->slots_count, sizeof(*f->begin));
    f->end = calloc(f->counters->slots_count, sizeof(*f->end));
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    tc_source_softpmu.close(f->counters);
    tc_source_softpmu_system.close(f->system);
    tc_softpmu_unmap(&f->softpmu);
    assert_int_equal(munmap(f->page, f->page->total_bytes), 0);
    assert_int_equal(close(f->fd), 0);
    free(f->begin);
    free(f->end);
    free(f);
    return 0;
}

static void become(struct fixture *f, enum tc_softpmu_state state)
{
    atomic_store(&f->page->state, state);
}

static void read_into(struct fixture *f, struct tc_reading *readings)
{
    assert_int_equal(tc_source_softpmu.read(f->counters, TC_DEPTH_END, readings, NULL), 0);
}

static uint64_t expected(const struct tc_slot *slot, uint64_t steps)
{
    enum tc_softpmu_mode mode = slot->mode == TC_MODE_USER ? TC_SOFTPMU_USER : TC_SOFTPMU_KERNEL;
    uint32_t cpu = (uint32_t)slot->cpu;
    uint32_t variant = strcmp(slot->variant, "1m") == 0;
    if (strcmp(slot->event, "INST_RETIRED") == 0) {
        return steps * page_writer_step(WRITER_INSTRUCTIONS, cpu, mode, 0);
    }
    if (strcmp(slot->event, "IFU_IFETCH_MISS") == 0) {
        return steps * page_writer_step(WRITER_FETCH_MISSES, cpu, mode, 0);
    }
    uint64_t misses = steps * page_writer_step(WRITER_L2_MISSES, cpu, mode, variant);
    if (strcmp(slot->event, "L2_LINES_IN") == 0) {
        return misses;
    }
    assert_string_equal(slot->event, "CPU_CLK_UNHALTED");
    return WRITER_PENALTY * misses +
           (uint64_t)(WRITER_BASE *
                      (double)(steps * page_writer_step(WRITER_INSTRUCTIONS, cpu, mode, 0)));
}

static void each_value_is_of_its_cpu_mode_and_variant(void **state)
{
    struct fixture *f = *state;
    /* Per CPU and mode two events of the machine and two of each variant. */
    assert_int_equal(f->counters->slots_count, CPUS * 2 * (2 + 2 * WRITER_VARIANTS));
    become(f, TC_SOFTPMU_ARMED);
    page_writer_advance(f->page, 0); /* what was counted before the window is not its */
    read_into(f, f->begin);
    for (int i = 0; i < STEPS; i++) {
        page_writer_advance(f->page, 0);
        page_writer_advance(f->page, 1);
    }
    read_into(f, f->end);
    for (size_t i = 0; i < f->counters->slots_count; i++) {
        const struct tc_slot *slot = &f->counters->slots[i];
        assert_int_equal(slot->cpu, i < f->counters->slots_count / CPUS ? 0 : 1);
        assert_int_equal(f->end[i].raw - f->begin[i].raw, expected(slot, STEPS));
    }
}

static void names_origins_and_variants_come_from_the_page(void **state)
{
    struct fixture *f = *state;
    static const struct {
        const char *event;
        const char *variant;
        enum tc_origin origin;
    } first[] = {{"INST_RETIRED", "", TC_ORIGIN_COUNTED},
                 {"INST_RETIRED", "", TC_ORIGIN_COUNTED},
                 {"IFU_IFETCH_MISS", "", TC_ORIGIN_SIMULATED},
                 {"IFU_IFETCH_MISS", "", TC_ORIGIN_SIMULATED},
                 {"L2_LINES_IN", "512k", TC_ORIGIN_SIMULATED},
                 {"L2_LINES_IN", "1m", TC_ORIGIN_SIMULATED},
                 {"L2_LINES_IN", "512k", TC_ORIGIN_SIMULATED},
                 {"L2_LINES_IN", "1m", TC_ORIGIN_SIMULATED},
                 {"CPU_CLK_UNHALTED", "512k", TC_ORIGIN_MODELLED}};
    for (size_t i = 0; i < sizeof(first) / sizeof(first[0]); i++) {
        assert_string_equal(f->counters->slots[i].event, first[i].event);
        assert_string_equal(f->counters->slots[i].variant, first[i].variant);
        assert_int_equal(f->counters->slots[i].origin, first[i].origin);
    }
    assert_int_equal(f->counters->slots[0].mode, TC_MODE_USER);
    assert_int_equal(f->counters->slots[1].mode, TC_MODE_KERNEL);
    assert_int_equal(f->counters->slots[6].mode, TC_MODE_KERNEL);
}

static void only_an_armed_machine_is_read(void **state)
{
    struct fixture *f = *state;
    struct tc_error err;
    assert_int_equal(atomic_load(&f->page->wanted), TC_SOFTPMU_DISARM);
    assert_int_equal(tc_softpmu_check(&f->softpmu, NULL), -EAGAIN);
    tc_softpmu_arm(&f->softpmu);
    assert_int_equal(atomic_load(&f->page->wanted), TC_SOFTPMU_ARM);
    assert_int_equal(tc_source_softpmu.read(f->counters, TC_DEPTH_END, f->end, NULL), -EIO);
    become(f, TC_SOFTPMU_ARMED);
    assert_int_equal(tc_softpmu_check(&f->softpmu, NULL), 0);
    read_into(f, f->end);
    (void)snprintf(f->page->message, sizeof(f->page->message), "no room for CPU 7");
    become(f, TC_SOFTPMU_FAILED);
    assert_int_equal(tc_source_softpmu.read(f->counters, TC_DEPTH_SAMPLE, f->end, &err), -EIO);
    assert_non_null(strstr(err.message, "no room for CPU 7"));
}

static uint64_t idle_of(struct fixture *f, struct tc_reading *readings, size_t cpu)
{
    assert_int_equal(tc_source_softpmu_system.read(f->system, TC_DEPTH_END, readings, NULL), 0);
    uint64_t idle_ns = readings[tc_proc_cpu_slot(cpu, TC_PROC_IDLE)].raw;
    assert_int_equal(readings[tc_proc_cpu_slot(cpu, TC_PROC_IDLE_FINE)].raw, idle_ns);
    return idle_ns;
}

static void idle_time_counts_a_sleep_under_way(void **state)
{
    struct fixture *f = *state;
    struct tc_reading *readings = calloc(f->system->slots_count, sizeof(*readings));
    struct timespec now;
    assert_int_equal(clock_gettime(CLOCK_MONOTONIC, &now), 0);
    uint64_t now_ns = (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
    assert_int_equal(idle_of(f, readings, 0), 0);
    page_writer_sleep(f->page, 0, now_ns - 5000);
    page_writer_wake(f->page, 0, now_ns - 2000);
    assert_int_equal(idle_of(f, readings, 0), 3000);
    assert_int_equal(idle_of(f, readings, 1), 0);
    page_writer_sleep(f->page, 1, now_ns - 7000);
    assert_true(idle_of(f, readings, 1) >= 7000);
    assert_true(idle_of(f, readings, 1) < UINT64_C(60000000000));
    free(readings);
}

static void what_only_the_guest_knows_has_a_reason(void **state)
{
    struct fixture *f = *state;
    size_t unknown = 0;
    for (size_t i = 0; i < f->system->slots_count; i++) {
        const struct tc_slot *slot = &f->system->slots[i];
        bool idle = strncmp(slot->event, "idle", 4) == 0;
        assert_int_equal(slot->status, idle ? TC_STATUS_OK : TC_STATUS_UNSUPPORTED);
        assert_int_equal(slot->reason[0] == '\0', idle);
        unknown += !idle;
    }
    assert_int_equal(unknown, CPUS * (TC_PROC_CPU_VALUES - 2) + TC_PROC_SYSTEM_VALUES);
}

struct running {
    struct fixture *f;
    uint32_t cpu;
};

static void *run(void *context)
{
    const struct running *running = context;
    for (uint64_t i = 0; i < STEPS; i++) {
        page_writer_advance(running->f->page, running->cpu);
        page_writer_sleep(running->f->page, running->cpu, 10 * i + 1);
        page_writer_wake(running->f->page, running->cpu, 10 * i + 4);
    }
    return NULL;
}

/* A reader beside writers: values only grow, and in the end all is there. */
static void reads_while_the_cpus_run(void **state)
{
    struct fixture *f = *state;
    pthread_t threads[CPUS];
    struct running running[CPUS];
    struct tc_reading *readings = calloc(f->system->slots_count, sizeof(*readings));
    become(f, TC_SOFTPMU_ARMED);
    read_into(f, f->begin);
    for (uint32_t cpu = 0; cpu < CPUS; cpu++) {
        running[cpu] = (struct running){f, cpu};
        assert_int_equal(pthread_create(&threads[cpu], NULL, run, &running[cpu]), 0);
    }
    for (int i = 0; i < STEPS; i++) {
        read_into(f, f->end);
        for (size_t slot = 0; slot < f->counters->slots_count; slot++) {
            assert_true(f->end[slot].raw >= f->begin[slot].raw);
        }
        memcpy(f->begin, f->end, f->counters->slots_count * sizeof(*f->end));
    }
    for (int cpu = 0; cpu < CPUS; cpu++) {
        assert_int_equal(pthread_join(threads[cpu], NULL), 0);
    }
    read_into(f, f->end);
    for (size_t slot = 0; slot < f->counters->slots_count; slot++) {
        assert_int_equal(f->end[slot].raw, expected(&f->counters->slots[slot], STEPS));
    }
    assert_int_equal(idle_of(f, readings, 1), 3 * STEPS);
    free(readings);
}

static void refuse(struct fixture *f, size_t machine_cpus, int code, const char *words)
{
    struct tc_softpmu softpmu;
    struct tc_error err = {""};
    assert_int_equal(tc_softpmu_map(&softpmu, f->fd, machine_cpus, &err), code);
    assert_non_null(strstr(err.message, words));
    assert_null(softpmu.page);
}

static void a_page_that_cannot_be_trusted_is_refused(void **state)
{
    struct fixture *f = *state;
    struct tc_softpmu_page good;
    memcpy(&good, f->page, sizeof(good));
    refuse(f, CPUS + 1, -EPROTO, "with 2 CPUs; expected a whole system with 3");
    f->page->whole_system = 0;
    refuse(f, CPUS, -EPROTO, "of one program");
    memcpy(f->page, &good, sizeof(good));
    atomic_store(&f->page->magic, 0);
    refuse(f, CPUS, -EAGAIN, "");
    atomic_store(&f->page->magic, UINT64_C(0x1234));
    refuse(f, CPUS, -EPROTO, "its magic is 1234");
    memcpy(f->page, &good, sizeof(good));
    f->page->version++;
    refuse(f, CPUS, -EPROTO, "has version 2, expected 1");
    memcpy(f->page, &good, sizeof(good));
    f->page->cpus = 0;
    (void)snprintf(f->page->message, sizeof(f->page->message), "l1d.ways: given 3");
    become(f, TC_SOFTPMU_FAILED);
    refuse(f, CPUS, -EIO, "l1d.ways: given 3");
    memcpy(f->page, &good, sizeof(good));
    f->page->event[WRITER_CYCLES].terms[1].slot = 3; /* of the second variant already */
    refuse(f, CPUS, -EPROTO, "contradicts itself");
    memcpy(f->page, &good, sizeof(good));
    f->page->cpu_stride = 64;
    refuse(f, CPUS, -EPROTO, "contradicts itself");
    f->page->cpu_stride = 0;
    refuse(f, CPUS, -EPROTO, "contradicts itself");
    memcpy(f->page, &good, sizeof(good));
    f->page->events = TC_SOFTPMU_EVENTS_MAX + 1;
    refuse(f, CPUS, -EPROTO, "contradicts itself");
    memcpy(f->page, &good, sizeof(good));
    memset(f->page->event[0].name, 'x', sizeof(f->page->event[0].name));
    refuse(f, CPUS, -EPROTO, "contradicts itself");
    memcpy(f->page, &good, sizeof(good));
}

static void a_file_that_is_cut_short_is_refused(void **state)
{
    struct fixture *f = *state;
    off_t whole = (off_t)f->page->total_bytes;
    assert_int_equal(ftruncate(f->fd, whole - 64), 0);
    refuse(f, CPUS, -EPROTO, "was it cut short?");
    assert_int_equal(ftruncate(f->fd, 100), 0);
    refuse(f, CPUS, -EAGAIN, "");
    assert_int_equal(ftruncate(f->fd, whole), 0);
    f->page->total_bytes = (uint64_t)whole; /* for tear_down */
}

/* A writer that died while it wrote must not hold the reader up for good. */
static void a_death_while_falling_asleep_is_noticed(void **state)
{
    struct fixture *f = *state;
    struct tc_error err;
    struct tc_reading *readings = calloc(f->system->slots_count, sizeof(*readings));
    atomic_store(&tc_softpmu_page_cpu(f->page, 1)->idle_sequence, 1);
    assert_int_equal(tc_source_softpmu_system.read(f->system, TC_DEPTH_SAMPLE, readings, &err),
                     -EIO);
    assert_non_null(strstr(err.message, "CPU 1"));
    free(readings);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(each_value_is_of_its_cpu_mode_and_variant),
        TEST(names_origins_and_variants_come_from_the_page),
        TEST(only_an_armed_machine_is_read),
        TEST(idle_time_counts_a_sleep_under_way),
        TEST(what_only_the_guest_knows_has_a_reason),
        TEST(reads_while_the_cpus_run),
        TEST(a_page_that_cannot_be_trusted_is_refused),
        TEST(a_file_that_is_cut_short_is_refused),
        TEST(a_death_while_falling_asleep_is_noticed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
