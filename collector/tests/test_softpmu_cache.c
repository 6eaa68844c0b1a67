#include <stdlib.h>
#include <string.h>

#include "collector/tests/check.h"
#include "collector/tests/softpmu_models.h"

enum access { LOAD, STORE, FETCH, ACCESSES };

static void touch(struct tc_core *core, enum access access, uint64_t address)
{
    if (access == LOAD) {
        tc_core_load(core, address, 4);
    } else if (access == STORE) {
        tc_core_store(core, address, 4);
    } else {
        tc_core_fetch(core, address);
    }
}

static void load_range(struct tc_core *core, uint64_t from, uint64_t bytes, uint64_t stride)
{
    for (uint64_t at = 0; at < bytes; at += stride) {
        tc_core_load(core, from + at, 4);
    }
}

/* ---- by hand ------------------------------------------------------------------------------ */

static void strides_miss_as_worked_out(void **state)
{
    (void)state;
    struct tc_machine machine = models_machine("p3-xeon", NULL);
    struct models m = models_new(&machine, 1);
    struct tc_core *core = models_core(&m, 0);
    /* 16 KiB of 4-byte loads: a miss per 32-byte line, then none: it fits. */
    load_range(core, 0, 16384, 4);
    load_range(core, 0, 16384, 4);
    assert_int_equal(models_event(&m, 0, 0, "DCU_LINES_IN"), 512);
    assert_int_equal(models_event(&m, 0, 0, "BUS_TRAN_BRD"), 512);
    /* Twice its size in order: LRU has always just dropped what comes next. The L2s hold it. */
    load_range(core, 0, 32768, 32);
    load_range(core, 0, 32768, 32);
    assert_int_equal(models_event(&m, 0, 0, "DCU_LINES_IN"), 512 + 512 + 1024);
    assert_int_equal(models_event(&m, 0, 0, "BUS_TRAN_BRD"), 1024);
    /* 1 MiB twice more: the larger L2s hold it, the smallest misses every line each time. */
    load_range(core, 0, 1 << 20, 32);
    load_range(core, 0, 1 << 20, 32);
    assert_int_equal(models_event(&m, 0, 0, "BUS_TRAN_BRD"), 1024 + 32768 - 1024 + 32768);
    assert_int_equal(models_event(&m, 0, 1, "BUS_TRAN_BRD"), 32768);
    assert_int_equal(models_event(&m, 0, 2, "BUS_TRAN_BRD"), 32768);
    models_free(&m);
}

static void chases_through_one_set_hit_up_to_its_ways(void **state)
{
    (void)state;
    struct tc_machine machine = models_machine("p3-xeon", "2m");
    for (uint64_t lines = 1; lines <= 6; lines++) {
        struct models m = models_new(&machine, 1);
        for (int round = 0; round < 10; round++) {
            load_range(models_core(&m, 0), 0, lines * 4096, 4096); /* 128 sets x 32 bytes apart */
        }
        assert_int_equal(models_event(&m, 0, 0, "DCU_LINES_IN"), lines <= 4 ? lines : lines * 10);
        assert_int_equal(models_event(&m, 0, 0, "L2_LINES_IN"), lines);
        models_free(&m);
    }
}

static void accesses_touch_every_line_they_reach_into(void **state)
{
    (void)state;
    struct tc_machine machine = models_machine("p3-xeon", "2m");
    struct models m = models_new(&machine, 1);
    struct tc_core *core = models_core(&m, 0);
    tc_core_load(core, 28, 4);
    assert_int_equal(models_event(&m, 0, 0, "DCU_LINES_IN"), 1);
    tc_core_load(core, 30, 4);
    assert_int_equal(models_event(&m, 0, 0, "DCU_LINES_IN"), 2);
    tc_core_store(core, 127, 2);
    assert_int_equal(models_event(&m, 0, 0, "DCU_M_LINES_IN"), 2);
    tc_core_load(core, 255, 64); /* 3 lines */
    assert_int_equal(models_event(&m, 0, 0, "DCU_LINES_IN"), 7);
    /* Each part of a split is a reference: 1 + 1 + 2 of them beyond the accesses themselves. */
    assert_int_equal(models_event(&m, 0, 0, "DATA_MEM_REFS"), 4);
    models_free(&m);
}

static void modified_lines_travel_down(void **state)
{
    (void)state;
    struct tc_machine machine = models_machine("p3-xeon", NULL);
    struct models m = models_new(&machine, 1);
    struct tc_core *core = models_core(&m, 0);
    for (uint64_t at = 0; at < 16384; at += 32) {
        tc_core_store(core, at, 4);
    }
    assert_int_equal(models_event(&m, 0, 0, "DCU_M_LINES_IN"), 512);
    assert_int_equal(models_event(&m, 0, 0, "BUS_TRAN_RFO"), 512);
    assert_int_equal(models_event(&m, 0, 0, "DCU_M_LINES_OUT"), 0);
    load_range(core, 1 << 20, 16384, 32); /* replaces them all: they go to the L2 */
    assert_int_equal(models_event(&m, 0, 0, "DCU_M_LINES_OUT"), 512);
    assert_int_equal(models_event(&m, 0, 0, "L2_M_LINES_INM"), 512);
    assert_int_equal(models_event(&m, 0, 0, "BUS_TRANS_WB"), 0);
    load_range(core, 2 << 20, 1 << 20, 32); /* replaces the smaller L2s' contents */
    assert_int_equal(models_event(&m, 0, 0, "BUS_TRANS_WB"), 512);
    assert_int_equal(models_event(&m, 0, 1, "BUS_TRANS_WB"), 512);
    assert_int_equal(models_event(&m, 0, 2, "BUS_TRANS_WB"), 0);
    assert_int_equal(models_event(&m, 0, 0, "L2_M_LINES_OUTM"), 512);
    /* 4 bus clocks of 8 bytes for each line in and each modified one out. */
    assert_int_equal(models_event(&m, 0, 0, "BUS_DRDY_CLOCKS"), 4 * (512 + 512 + 32768 + 512));
    assert_int_equal(models_event(&m, 0, 2, "BUS_DRDY_CLOCKS"), 4 * (512 + 512 + 32768));
    models_free(&m);
}

static void code_that_is_written_leaves_the_l1i(void **state)
{
    (void)state;
    struct tc_machine machine = models_machine("p3-xeon", "2m");
    struct models m = models_new(&machine, 1);
    struct tc_core *core = models_core(&m, 0);
    tc_core_fetch(core, 64);
    tc_core_fetch(core, 64);
    assert_int_equal(models_event(&m, 0, 0, "IFU_IFETCH_MISS"), 1);
    tc_core_store(core, 64, 1); /* misses the L1D, hits the L2, takes the line from the L1I */
    tc_core_fetch(core, 64);    /* takes it back: the L1D's modified line goes to the L2 */
    assert_int_equal(models_event(&m, 0, 0, "IFU_IFETCH_MISS"), 2);
    assert_int_equal(models_event(&m, 0, 0, "DCU_M_LINES_OUT"), 1);
    assert_int_equal(models_event(&m, 0, 0, "L2_M_LINES_INM"), 1);
    tc_core_store(core, 64, 1); /* the L1D still has it, clean */
    tc_core_fetch(core, 64);
    assert_int_equal(models_event(&m, 0, 0, "IFU_IFETCH_MISS"), 3);
    assert_int_equal(models_event(&m, 0, 0, "DCU_LINES_IN"), 1);
    assert_int_equal(models_event(&m, 0, 0, "BUS_TRAN_MEM"), 1);
    models_free(&m);
}

static void the_llc_holds_what_the_l2_drops(void **state)
{
    (void)state;
    struct tc_machine machine = models_machine("skylake-server", NULL);
    struct models m = models_new(&machine, 2);
    load_range(models_core(&m, 0), 0, 4 << 20, 64); /* 65536 lines: 4 times the L2 */
    load_range(models_core(&m, 0), 0, 4 << 20, 64);
    assert_int_equal(models_event(&m, 0, 0, "LLC_REFERENCES"), 2 * 65536);
    assert_int_equal(models_event(&m, 0, 0, "LLC_MISSES"), 65536);
    load_range(models_core(&m, 1), 0, 4 << 20, 64); /* shared */
    assert_int_equal(models_event(&m, 1, 0, "LLC_REFERENCES"), 65536);
    assert_int_equal(models_event(&m, 1, 0, "LLC_MISSES"), 0);
    for (uint64_t at = 0; at < 4 << 20; at += 64) {
        tc_core_store(models_core(&m, 0), (UINT64_C(1) << 30) + at, 8);
    }
    /* What it wrote is modified in the L2 or the LLC; reading 44 MiB drives all of it to memory. */
    assert_int_equal(models_event(&m, 0, 0, "LLC_M_LINES_OUT"), 0);
    load_range(models_core(&m, 0), UINT64_C(2) << 30, 44 << 20, 64);
    assert_int_equal(models_event(&m, 0, 0, "LLC_M_LINES_OUT"), 65536);
    models_free(&m);
}

/* ---- against a plain model ---------------------------------------------------------------- */

struct plain_line {
    uint64_t line;
    uint64_t used; /* 0: empty */
    bool modified;
};

struct plain_cache {
    struct plain_line *lines;
    uint64_t sets;
    uint32_t ways;
};

struct plain {
    struct plain_cache l1d, l1i, l2;
    uint64_t now;
    uint64_t load_misses, store_misses, fetch_misses, reads, out, write_backs, l1d_out, l2_modified;
};

static struct plain_cache plain_cache(uint64_t bytes, uint32_t ways)
{
    struct plain_cache cache = {.sets = bytes / ways / 32, .ways = ways};
    cache.lines = calloc(cache.sets * ways, sizeof(*cache.lines));
    assert_non_null(cache.lines);
    return cache;
}

static struct plain_line *plain_find(struct plain_cache *cache, uint64_t line)
{
    struct plain_line *set = &cache->lines[line % cache->sets * cache->ways];
    for (uint32_t way = 0; way < cache->ways; way++) {
        if (set[way].used != 0 && set[way].line == line) {
            return &set[way];
        }
    }
    return NULL;
}

/* Where the line goes; what is there is copied to *old. */
static struct plain_line *plain_put(struct plain *p, struct plain_cache *cache, uint64_t line,
                                    struct plain_line *old)
{
    struct plain_line *set = &cache->lines[line % cache->sets * cache->ways];
    struct plain_line *oldest = set;
    for (uint32_t way = 1; way < cache->ways; way++) {
        if (set[way].used < oldest->used) {
            oldest = &set[way];
        }
    }
    *old = *oldest;
    *oldest = (struct plain_line){.line = line, .used = ++p->now};
    return oldest;
}

static struct plain_line *plain_put_l2(struct plain *p, uint64_t line)
{
    struct plain_line old;
    struct plain_line *put = plain_put(p, &p->l2, line, &old);
    p->out += old.used != 0;
    p->write_backs += old.used != 0 && old.modified;
    return put;
}

static void plain_write_back(struct plain *p, uint64_t line)
{
    struct plain_line *l2 = plain_find(&p->l2, line);
    if (l2 == NULL) {
        l2 = plain_put_l2(p, line);
    }
    p->l2_modified += !l2->modified;
    l2->modified = true;
    p->l1d_out++;
}

static void plain_miss(struct plain *p, struct plain_cache *l1, uint64_t line)
{
    struct plain_line old;
    struct plain_line *l2 = plain_find(&p->l2, line);
    if (l2 == NULL) {
        l2 = plain_put_l2(p, line);
        p->reads++;
    }
    l2->used = ++p->now;
    (void)plain_put(p, l1, line, &old);
    if (old.used != 0 && old.modified) {
        plain_write_back(p, old.line);
    }
}

static void plain_access(struct plain *p, enum access access, uint64_t line)
{
    struct plain_cache *l1 = access == FETCH ? &p->l1i : &p->l1d;
    struct plain_line *here = plain_find(l1, line);
    if (here != NULL) {
        here->used = ++p->now;
    } else {
        struct plain_line *data = plain_find(&p->l1d, line);
        if (access == FETCH && data != NULL && data->modified) {
            plain_write_back(p, line);
            data->modified = false;
        }
        *(access == LOAD    ? &p->load_misses
          : access == STORE ? &p->store_misses
                            : &p->fetch_misses) += 1;
        plain_miss(p, l1, line);
    }
    if (access == STORE) {
        struct plain_line *code = plain_find(&p->l1i, line);
        if (code != NULL) {
            code->used = 0;
        }
        plain_find(&p->l1d, line)->modified = true;
    }
}

static void compare_with_plain(const struct models *m, uint32_t v, const struct plain *p)
{
    assert_int_equal(models_event(m, 0, v, "L2_LD"), p->load_misses);
    assert_int_equal(models_event(m, 0, v, "L2_ST"), p->store_misses);
    assert_int_equal(models_event(m, 0, v, "L2_IFETCH"), p->fetch_misses);
    assert_int_equal(models_event(m, 0, v, "DCU_M_LINES_OUT"), p->l1d_out);
    assert_int_equal(models_event(m, 0, v, "L2_M_LINES_INM"), p->l2_modified);
    assert_int_equal(models_event(m, 0, v, "L2_LINES_OUT"), p->out);
    assert_int_equal(models_event(m, 0, v, "BUS_TRANS_WB"), p->write_backs);
    assert_int_equal(models_event(m, 0, v, "BUS_TRAN_BURST"), p->reads + p->write_backs);
}

/* Addresses with some locality: mostly within a small area that moves. */
static uint64_t next_address(uint64_t *random, uint64_t bytes)
{
    uint64_t r = models_random(random);
    uint64_t area = r >> 40 & 7 ? (r >> 32 & 1) * 2048 + (r & 1023) : r;
    return area % bytes & ~UINT64_C(3);
}

static void random_traces_count_as_in_a_plain_model(void **state)
{
    (void)state;
    struct tc_machine machine = models_small_machine();
    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct models m = models_new(&machine, 1);
        struct plain plain[3] = {0};
        for (uint32_t v = 0; v < 3; v++) {
            plain[v].l1d = plain_cache(1024, 2);
            plain[v].l1i = plain_cache(1024, 2);
            plain[v].l2 = plain_cache(machine.variant[v].l2_bytes, 4);
        }
        uint64_t random = seed * UINT64_C(0x9e3779b97f4a7c15);
        for (int i = 0; i < 20000; i++) {
            uint64_t address = next_address(&random, seed * 1024);
            enum access access = (enum access)(models_random(&random) % ACCESSES);
            touch(models_core(&m, 0), access, address);
            for (uint32_t v = 0; v < 3; v++) {
                plain_access(&plain[v], access, address / 32);
            }
        }
        for (uint32_t v = 0; v < 3; v++) {
            compare_with_plain(&m, v, &plain[v]);
            free(plain[v].l1d.lines);
            free(plain[v].l1i.lines);
            free(plain[v].l2.lines);
        }
        models_free(&m);
    }
}

/* ---- variants ----------------------------------------------------------------------------- */

static void run_trace(const struct models *m, uint32_t cpus, uint64_t seed)
{
    uint64_t random = seed * UINT64_C(0x9e3779b97f4a7c15);
    for (int i = 0; i < 30000; i++) {
        uint64_t r = models_random(&random);
        uint64_t address = next_address(&random, 24576);
        /* Mostly loads, so that lines come to be shared. */
        touch(models_core(m, (uint32_t)(r % cpus)), r >> 8 & 3 ? LOAD : (r >> 10) % ACCESSES,
              address);
    }
}

static void variants_in_one_run_count_as_in_runs_of_their_own(void **state)
{
    (void)state;
    struct tc_machine machine = models_small_machine();
    for (uint32_t cpus = 1; cpus <= 4; cpus++) {
        struct models all = models_new(&machine, cpus);
        run_trace(&all, cpus, cpus);
        models_check_coherence(&all, 1024);
        for (uint32_t v = 0; v < 3; v++) {
            struct tc_machine one = models_only(machine, v);
            struct models alone = models_new(&one, cpus);
            run_trace(&alone, cpus, cpus);
            for (uint32_t event = 0; event < all.page->events; event++) {
                for (uint32_t cpu = 0; cpu < cpus; cpu++) {
                    const char *name = all.page->event[event].name;
                    assert_int_equal(models_event(&all, cpu, v, name),
                                     models_event(&alone, cpu, 0, name));
                }
            }
            models_free(&alone);
        }
        /* The trace tells the variants apart, else the comparison would show nothing. */
        assert_true(models_total(&all, 0, "BUS_TRAN_BRD") > models_total(&all, 1, "BUS_TRAN_BRD"));
        if (cpus > 1) {
            assert_int_not_equal(models_total(&all, 0, "BUS_TRAN_INVAL"),
                                 models_total(&all, 2, "BUS_TRAN_INVAL"));
        }
        models_free(&all);
    }
}

static void modes_count_apart(void **state)
{
    (void)state;
    struct tc_machine machine = models_machine("p3-xeon", "2m");
    struct models m = models_new(&machine, 1);
    struct tc_core *core = models_core(&m, 0);
    tc_core_count(core, TC_SLOT_INSTRUCTIONS, 7);
    tc_core_set_mode(core, TC_SOFTPMU_KERNEL);
    tc_core_count(core, TC_SLOT_INSTRUCTIONS, 5);
    assert_string_equal(m.page->event[0].name, "INST_RETIRED");
    assert_int_equal(tc_softpmu_page_value(m.page, 0, 0, TC_SOFTPMU_USER, 0), 7);
    assert_int_equal(tc_softpmu_page_value(m.page, 0, 0, TC_SOFTPMU_KERNEL, 0), 5);
    models_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strides_miss_as_worked_out),
        cmocka_unit_test(chases_through_one_set_hit_up_to_its_ways),
        cmocka_unit_test(accesses_touch_every_line_they_reach_into),
        cmocka_unit_test(modified_lines_travel_down),
        cmocka_unit_test(code_that_is_written_leaves_the_l1i),
        cmocka_unit_test(the_llc_holds_what_the_l2_drops),
        cmocka_unit_test(random_traces_count_as_in_a_plain_model),
        cmocka_unit_test(variants_in_one_run_count_as_in_runs_of_their_own),
        cmocka_unit_test(modes_count_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
