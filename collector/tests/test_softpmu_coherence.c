#include <pthread.h>
#include <sched.h>
#include <string.h>

#include "collector/tests/check.h"
#include "collector/tests/softpmu_models.h"

#define TURNS 100
#define LINE  UINT64_C(0x1000)

static struct models new_models(uint32_t cpus)
{
    struct tc_machine machine = models_machine("p3-xeon", NULL);
    return models_new(&machine, cpus);
}

/* In every variant, as nothing here is large enough to tell them apart. */
static void expect(const struct models *m, uint32_t cpu, const char *event, uint64_t count)
{
    for (uint32_t v = 0; v < m->page->variants; v++) {
        uint64_t found = models_event(m, cpu, v, event);
        if (found != count) {
            fail_msg("CPU %u, variant %u, %s: %lu, expected %lu", cpu, v, event, found, count);
        }
    }
}

static void write_in_turns(const struct models *m, uint64_t first, uint64_t second)
{
    for (int turn = 0; turn < TURNS; turn++) {
        tc_core_store(models_core(m, 0), first, 4);
        tc_core_store(models_core(m, 1), second, 4);
    }
}

static void expect_ping_pong(const struct models *m)
{
    /* Every store finds the line modified at the other CPU, but for the very first. */
    expect(m, 0, "BUS_TRAN_RFO", TURNS);
    expect(m, 1, "BUS_TRAN_RFO", TURNS);
    expect(m, 0, "hitm_received", TURNS - 1);
    expect(m, 1, "hitm_received", TURNS);
    expect(m, 0, "BUS_HITM_DRV", TURNS);
    expect(m, 1, "BUS_HITM_DRV", TURNS - 1);
    expect(m, 0, "DCU_M_LINES_IN", TURNS);
    expect(m, 0, "DCU_M_LINES_OUT", TURNS);
    expect(m, 1, "DCU_M_LINES_OUT", TURNS - 1);
    expect(m, 0, "L2_LINES_OUT", TURNS);
    expect(m, 1, "L2_LINES_OUT", TURNS - 1);
    /* It is the L1D's copy that is modified; written back implicitly, by the answer itself. */
    expect(m, 0, "L2_M_LINES_OUTM", 0);
    expect(m, 0, "BUS_TRANS_WB", 0);
    expect(m, 0, "BUS_TRAN_INVAL", 0);
    expect(m, 0, "BUS_HIT_DRV", 0);
    expect(m, 0, "BUS_DRDY_CLOCKS", UINT64_C(4) * TURNS);
}

static void two_cpus_write_one_line(void **state)
{
    (void)state;
    struct models m = new_models(2);
    write_in_turns(&m, LINE, LINE);
    expect_ping_pong(&m);
    models_free(&m);
}

static void false_sharing_costs_as_much_as_sharing(void **state)
{
    (void)state;
    struct models m = new_models(2);
    write_in_turns(&m, LINE, LINE + 16);
    expect_ping_pong(&m);
    models_free(&m);
    m = new_models(2);
    write_in_turns(&m, LINE, LINE + 32);
    expect(&m, 0, "BUS_TRAN_ANY", 1);
    expect(&m, 1, "BUS_TRAN_ANY", 1);
    expect(&m, 0, "BUS_HITM_DRV", 0);
    models_free(&m);
}

static void readers_share(void **state)
{
    (void)state;
    struct models m = new_models(4);
    for (int turn = 0; turn < TURNS; turn++) {
        for (uint32_t cpu = 0; cpu < 4; cpu++) {
            tc_core_load(models_core(&m, cpu), LINE, 4);
        }
    }
    for (uint32_t cpu = 0; cpu < 4; cpu++) {
        expect(&m, cpu, "BUS_TRAN_ANY", 1);
        expect(&m, cpu, "BUS_TRAN_BRD", 1);
        expect(&m, cpu, "BUS_HIT_DRV", 3 - cpu); /* those that read later found it here */
        expect(&m, cpu, "BUS_HITM_DRV", 0);
    }
    /* A write takes it from all: address only. */
    tc_core_store(models_core(&m, 2), LINE, 4);
    tc_core_store(models_core(&m, 2), LINE, 4);
    expect(&m, 2, "BUS_TRAN_INVAL", 1);
    expect(&m, 2, "BUS_TRAN_RFO", 0);
    expect(&m, 2, "L2_ST", 1);
    expect(&m, 2, "DCU_LINES_IN", 1);
    expect(&m, 2, "BUS_DRDY_CLOCKS", 4);
    expect(&m, 2, "L2_LINES_OUT", 0);
    for (uint32_t cpu = 0; cpu < 4; cpu++) {
        expect(&m, cpu, "L2_LINES_OUT", cpu == 2 ? 0 : 1);
    }
    tc_core_load(models_core(&m, 0), LINE, 4);
    expect(&m, 0, "hitm_received", 1);
    expect(&m, 2, "BUS_HITM_DRV", 1);
    models_check_coherence(&m, 256);
    models_free(&m);
}

static void an_upgraded_line_stays_owned_in_the_l2(void **state)
{
    (void)state;
    struct models m = new_models(2);
    tc_core_load(models_core(&m, 0), LINE, 4);
    tc_core_load(models_core(&m, 1), LINE, 4);
    tc_core_store(models_core(&m, 0), LINE, 4);
    tc_core_fetch(models_core(&m, 0), LINE);  /* the L1D's copy is clean now, the L2's modified */
    for (uint64_t way = 1; way <= 4; way++) { /* and leaves the L1D */
        tc_core_load(models_core(&m, 0), LINE + way * 4096, 4);
    }
    tc_core_store(models_core(&m, 0), LINE, 4);
    expect(&m, 0, "BUS_TRAN_INVAL", 1);
    expect(&m, 0, "BUS_TRAN_RFO", 0);
    expect(&m, 0, "L2_ST", 2);
    models_check_coherence(&m, 256);
    models_free(&m);
}

static void a_cpu_alone_owns_what_it_reads(void **state)
{
    (void)state;
    struct models m = new_models(2);
    tc_core_load(models_core(&m, 0), LINE, 4);
    tc_core_store(models_core(&m, 0), LINE, 4);
    expect(&m, 0, "BUS_TRAN_ANY", 1);
    expect(&m, 0, "L2_ST", 0);
    models_free(&m);
}

static void migratory_data_moves_modified(void **state)
{
    (void)state;
    struct models m = new_models(2);
    for (int turn = 0; turn < TURNS; turn++) {
        for (uint32_t cpu = 0; cpu < 2; cpu++) {
            tc_core_load(models_core(&m, cpu), LINE, 4);
            tc_core_store(models_core(&m, cpu), LINE, 4);
        }
    }
    /* A turn reads what the other CPU has modified, which leaves both with a shared copy, and then
     * takes it; the very first one found nobody. */
    expect(&m, 0, "BUS_TRAN_BRD", TURNS);
    expect(&m, 1, "BUS_TRAN_BRD", TURNS);
    expect(&m, 0, "BUS_TRAN_INVAL", TURNS - 1);
    expect(&m, 1, "BUS_TRAN_INVAL", TURNS);
    expect(&m, 0, "BUS_HITM_DRV", TURNS);
    expect(&m, 1, "BUS_HITM_DRV", TURNS - 1);
    expect(&m, 0, "BUS_HIT_DRV", 0);
    expect(&m, 0, "BUS_TRAN_RFO", 0);
    expect(&m, 0, "BUS_TRANS_WB", 0);
    expect(&m, 0, "L2_ST", TURNS - 1);
    expect(&m, 0, "BUS_DRDY_CLOCKS", UINT64_C(4) * TURNS);
    models_free(&m);
}

static void modified_lines_of_the_l2_answer_too(void **state)
{
    (void)state;
    struct models m = new_models(2);
    for (uint64_t at = 0; at < 32768; at += 32) { /* the first half ends in the L2 */
        tc_core_store(models_core(&m, 0), at, 4);
    }
    expect(&m, 0, "L2_M_LINES_INM", 512);
    for (uint64_t at = 0; at < 16384; at += 32) {
        tc_core_load(models_core(&m, 1), at, 4);
    }
    expect(&m, 1, "hitm_received", 512);
    expect(&m, 0, "DCU_M_LINES_OUT", 512); /* none of them from the L1D by snooping */
    for (uint64_t at = 16384; at < 32768; at += 32) {
        tc_core_store(models_core(&m, 1), at, 4);
    }
    expect(&m, 1, "hitm_received", 1024);
    expect(&m, 0, "DCU_M_LINES_OUT", 1024);
    expect(&m, 0, "L2_M_LINES_OUTM", 0);
    expect(&m, 0, "L2_LINES_OUT", 512);
    models_check_coherence(&m, 1024);
    models_free(&m);
}

static void another_cpu_writes_code(void **state)
{
    (void)state;
    struct models m = new_models(2);
    tc_core_fetch(models_core(&m, 0), LINE);
    tc_core_store(models_core(&m, 1), LINE, 4);
    expect(&m, 1, "BUS_TRAN_RFO", 1);
    tc_core_fetch(models_core(&m, 0), LINE);
    expect(&m, 0, "IFU_IFETCH_MISS", 2);
    expect(&m, 0, "BUS_TRAN_IFETCH", 2);
    expect(&m, 1, "BUS_HITM_DRV", 1);
    tc_core_store(models_core(&m, 1), LINE, 4); /* shared with the L1I: one more invalidation */
    expect(&m, 1, "BUS_TRAN_INVAL", 1);
    tc_core_fetch(models_core(&m, 0), LINE);
    expect(&m, 0, "IFU_IFETCH_MISS", 3);
    models_free(&m);
}

/* ---- threads ------------------------------------------------------------------------------ */

#define THREADS  4
#define LINES    2048 /* four times the small L1s and L2s together */
#define ACCESSES 200000

struct worker {
    struct tc_core *core;
    uint64_t seed;
};

static void *work(void *data)
{
    const struct worker *worker = data;
    uint64_t random = worker->seed;
    for (int i = 0; i < ACCESSES; i++) {
        uint64_t r = models_random(&random);
        /* Half of it on a few lines that all CPUs want. */
        uint64_t address = (r & 1 ? r >> 8 & 15 : (r >> 8) % LINES) * 32;
        if ((r >> 1 & 7) < 4) {
            tc_core_load(worker->core, address, 4);
        } else if ((r >> 1 & 7) < 7) {
            tc_core_store(worker->core, address, 4);
        } else {
            tc_core_fetch(worker->core, address);
        }
    }
    return NULL;
}

static void check_conservation(const struct models *m)
{
    for (uint32_t v = 0; v < m->page->variants; v++) {
        assert_int_equal(models_total(m, v, "BUS_HITM_DRV"), models_total(m, v, "hitm_received"));
        for (uint32_t cpu = 0; cpu < THREADS; cpu++) {
            assert_int_equal(models_event(m, cpu, v, "L2_LINES_IN") -
                                 models_event(m, cpu, v, "L2_LINES_OUT"),
                             models_held(&models_core(m, cpu)->l2[v]));
        }
    }
}

static void threads_leave_coherent_caches(void **state)
{
    (void)state;
    struct tc_machine machines[] = {models_small_machine(), models_machine("skylake-server", NULL)};
    for (size_t i = 0; i < sizeof(machines) / sizeof(machines[0]); i++) {
        struct models m = models_new(&machines[i], THREADS);
        struct worker workers[THREADS];
        pthread_t threads[THREADS];
        for (uint32_t cpu = 0; cpu < THREADS; cpu++) {
            workers[cpu] = (struct worker){models_core(&m, cpu), cpu + 1};
            assert_int_equal(pthread_create(&threads[cpu], NULL, work, &workers[cpu]), 0);
        }
        for (uint32_t cpu = 0; cpu < THREADS; cpu++) {
            assert_int_equal(pthread_join(threads[cpu], NULL), 0);
        }
        models_check_coherence(&m, LINES);
        check_conservation(&m);
        assert_true(models_total(&m, 0, "BUS_HITM_DRV") > 0);
        models_free(&m);
    }
}

/* ---- a fill against a snoop ----------------------------------------------------------------- */

#define ROUNDS 100000

struct duel {
    const struct models *models;
    _Atomic uint64_t go;   /* rounds begun */
    _Atomic uint64_t done; /* rounds that the other CPU has ended */
};

static void wait_for(const _Atomic uint64_t *counter, uint64_t value)
{
    for (int spins = 0; atomic_load(counter) < value; spins++) {
        if (spins > 1000) {
            (void)sched_yield(); /* it may have no CPU */
        }
    }
}

static void *store_each_round(void *data)
{
    struct duel *duel = data;
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        wait_for(&duel->go, round);
        for (uint64_t i = 0; i < round % 16; i++) { /* meets the fill at different points */
            atomic_signal_fence(memory_order_seq_cst);
        }
        tc_core_store(models_core(duel->models, 1), 0, 4);
        atomic_store(&duel->done, round);
    }
    return NULL;
}

/* A line that CPU 0 has in its L2 only is filled into its L1 without a lock while CPU 1 takes it
 * away: no copy may survive that nobody knows of. */
static void fills_do_not_outlive_snoops(void **state)
{
    (void)state;
    struct tc_machine machine = models_small_machine();
    struct models m = models_new(&machine, 2);
    struct duel duel = {.models = &m};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, store_each_round, &duel), 0);
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        struct tc_core *core = models_core(&m, 0);
        tc_core_load(core, 0, 4);
        tc_core_load(core, 512, 4); /* the other two displace it from the set's two ways */
        tc_core_load(core, 1024, 4);
        atomic_store(&duel.go, round);
        if (round & 1) {
            tc_core_load(core, 0, 4);
        } else {
            tc_core_fetch(core, 0);
        }
        wait_for(&duel.done, round);
        models_check_coherence(&m, 1);
    }
    assert_int_equal(pthread_join(thread, NULL), 0);
    models_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_cpus_write_one_line),
        cmocka_unit_test(false_sharing_costs_as_much_as_sharing),
        cmocka_unit_test(readers_share),
        cmocka_unit_test(an_upgraded_line_stays_owned_in_the_l2),
        cmocka_unit_test(a_cpu_alone_owns_what_it_reads),
        cmocka_unit_test(migratory_data_moves_modified),
        cmocka_unit_test(modified_lines_of_the_l2_answer_too),
        cmocka_unit_test(another_cpu_writes_code),
        cmocka_unit_test(threads_leave_coherent_caches),
        cmocka_unit_test(fills_do_not_outlive_snoops),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
