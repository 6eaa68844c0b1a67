#include <string.h>

#include "collector/softpmu/predictor.h"
#include "collector/tests/check.h"
#include "collector/tests/softpmu_models.h"

#define AT UINT64_C(0x1007)

static struct tc_predictor predictor;

static int setup(void **state)
{
    (void)state;
    struct tc_machine machine = models_machine("p3-xeon", "2m");
    return tc_predictor_init(&predictor, 0, &machine.predictor);
}

static int teardown(void **state)
{
    (void)state;
    tc_predictor_free(&predictor);
    return 0;
}

static unsigned conditional(uint64_t address, bool backward, bool taken)
{
    struct tc_branch branch = {
        .address = address, .kind = TC_BRANCH_CONDITIONAL, .backward = backward};
    return tc_predictor_resolve(&predictor, &branch, taken, 0x2000) & ~TC_BRANCH_TAKEN;
}

static unsigned transfer(enum tc_branch_kind kind, uint64_t address, uint64_t target)
{
    struct tc_branch branch = {.address = address, .kind = (uint8_t)kind};
    return tc_predictor_resolve(&predictor, &branch, true, target) & ~TC_BRANCH_TAKEN;
}

/* Runs a pattern of T and N; returns mispredicted ones after the warm-up. */
static int mispredicted(const char *pattern, int repeats, int warm_up)
{
    int count = 0;
    for (int i = 0; i < repeats; i++) {
        for (const char *p = pattern; *p != '\0'; p++) {
            unsigned result = conditional(AT, false, *p == 'T');
            count += i >= warm_up && (result & TC_BRANCH_MISPREDICTED) != 0;
        }
    }
    return count;
}

static void unknown_branches_are_predicted_by_their_direction(void **state)
{
    (void)state;
    /* Not taken: predicted if forward, and never entered into the BTB. */
    for (int i = 0; i < 3; i++) {
        assert_int_equal(conditional(AT, false, false), TC_BRANCH_BTB_MISS);
        assert_int_equal(conditional(AT, true, false), TC_BRANCH_BTB_MISS | TC_BRANCH_MISPREDICTED);
    }
    /* Taken: predicted if backward, and entered. */
    assert_int_equal(conditional(AT, true, true), TC_BRANCH_BTB_MISS);
    assert_int_equal(conditional(AT, true, true), 0);
    assert_int_equal(conditional(AT + 16, false, true),
                     TC_BRANCH_BTB_MISS | TC_BRANCH_MISPREDICTED);
    assert_int_equal(conditional(AT + 16, false, true), 0);
}

static void loops_mispredict_at_their_end_if_longer_than_the_history(void **state)
{
    (void)state;
    /* With k outcomes a round, the history tells the end apart if it has room for k - 1. */
    assert_int_equal(mispredicted("TN", 50, 10), 0);
    assert_int_equal(mispredicted("TTN", 50, 10), 0);
    assert_int_equal(mispredicted("TTTN", 50, 10), 0);
    assert_int_equal(mispredicted("TTTTN", 50, 10), 0);
    assert_int_equal(mispredicted("TTTTTN", 50, 10), 40);
    assert_int_equal(mispredicted("TTTTTTTTTTTTTTTTTTTN", 50, 10), 40);
}

static void a_loop_of_k_iterations_from_cold(void **state)
{
    (void)state;
    int wrong = 0;
    int missing = 0;
    for (int i = 0; i < 1000; i++) {
        unsigned result = conditional(AT, true, i < 999);
        wrong += (result & TC_BRANCH_MISPREDICTED) != 0;
        missing += (result & TC_BRANCH_BTB_MISS) != 0;
    }
    assert_int_equal(wrong, 1); /* the end */
    assert_int_equal(missing, 1);
}

static void patterns_are_learned_within_the_histories_reach(void **state)
{
    (void)state;
    assert_int_equal(mispredicted("TTNN", 50, 10), 0);
    assert_int_equal(mispredicted("TNTTN", 50, 10), 0);
    /* The histories TTTT and TTTT of this one have different outcomes: T and N. */
    assert_int_not_equal(mispredicted("TTTTTTNN", 50, 10), 0);
}

static void learning_an_alternation_takes_what_the_counters_take(void **state)
{
    (void)state;
    /* Entered by the first T (mispredicted: forward, unknown) with history 0001 and all counters
     * weakly taken. N at 0001 is wrong, so is N at 0101; T at 0010 and at 1010 are right; after
     * that all are. */
    static const bool wrong[] = {true, true, false, true, false, false, false, false, false};
    for (size_t i = 0; i < sizeof(wrong); i++) {
        assert_int_equal((conditional(AT, false, i % 2 == 0) & TC_BRANCH_MISPREDICTED) != 0,
                         wrong[i]);
    }
}

static void decoding_finds_direct_targets(void **state)
{
    (void)state;
    assert_int_equal(transfer(TC_BRANCH_JUMP, AT, 0x5000), TC_BRANCH_BTB_MISS);
    assert_int_equal(transfer(TC_BRANCH_JUMP, AT, 0x5000), 0);
    assert_int_equal(transfer(TC_BRANCH_CALL, AT + 16, 0x5000), TC_BRANCH_BTB_MISS);
    assert_int_equal(transfer(TC_BRANCH_CALL, AT + 16, 0x5000), 0);
    assert_int_equal(transfer(TC_BRANCH_FAR, AT + 32, 0x5000), TC_BRANCH_BTB_MISS);
    assert_int_equal(transfer(TC_BRANCH_FAR, AT + 32, 0x5000), TC_BRANCH_BTB_MISS);
}

static void indirect_branches_go_where_they_went_last(void **state)
{
    (void)state;
    assert_int_equal(transfer(TC_BRANCH_INDIRECT_JUMP, AT, 0x5000),
                     TC_BRANCH_BTB_MISS | TC_BRANCH_MISPREDICTED);
    assert_int_equal(transfer(TC_BRANCH_INDIRECT_JUMP, AT, 0x5000), 0);
    assert_int_equal(transfer(TC_BRANCH_INDIRECT_JUMP, AT, 0x6000), TC_BRANCH_MISPREDICTED);
    assert_int_equal(transfer(TC_BRANCH_INDIRECT_JUMP, AT, 0x6000), 0);
    assert_int_equal(transfer(TC_BRANCH_INDIRECT_CALL, AT + 16, 0x7000),
                     TC_BRANCH_BTB_MISS | TC_BRANCH_MISPREDICTED);
    assert_int_equal(transfer(TC_BRANCH_RETURN, AT + 32, AT + 17), TC_BRANCH_BTB_MISS);
}

/* Calls nested that deep, and back; returns the mispredicted returns. */
static int nest(int depth)
{
    int wrong = 0;
    for (int i = 0; i < depth; i++) {
        (void)transfer(TC_BRANCH_CALL, AT + 64 * (uint64_t)i, 0x9000);
    }
    for (int i = depth - 1; i >= 0; i--) {
        wrong += (transfer(TC_BRANCH_RETURN, 0x9008, AT + 64 * (uint64_t)i + 1) &
                  TC_BRANCH_MISPREDICTED) != 0;
    }
    return wrong;
}

static void returns_are_predicted_as_deep_as_the_stack(void **state)
{
    (void)state;
    assert_int_equal(nest(1), 0);
    assert_int_equal(nest(16), 0);
    assert_int_equal(nest(17), 1);
    assert_int_equal(nest(40), 24);
    assert_int_equal(nest(16), 0);
    /* A return that went elsewhere than its call came from. */
    (void)transfer(TC_BRANCH_CALL, AT, 0x9000);
    assert_int_equal(transfer(TC_BRANCH_RETURN, 0x9008, 0xa000), TC_BRANCH_MISPREDICTED);
}

static void a_set_holds_as_many_branches_as_it_has_ways(void **state)
{
    (void)state;
    /* 128 sets of 16-byte blocks: 2 KiB apart is the same set. */
    for (int branches = 1; branches <= 6; branches++) {
        uint64_t base = UINT64_C(0x100000) * (uint64_t)branches;
        int missing = 0;
        for (int round = 0; round < 10; round++) {
            for (int i = 0; i < branches; i++) {
                missing += (transfer(TC_BRANCH_JUMP, base + 2048 * (uint64_t)i, 0x5000) &
                            TC_BRANCH_BTB_MISS) != 0;
            }
        }
        assert_int_equal(missing, branches <= 4 ? branches : 10 * branches);
    }
}

static void cores_count_what_the_predictor_says(void **state)
{
    (void)state;
    struct tc_machine machine = models_machine("p3-xeon", "2m");
    struct models m = models_new(&machine, 1);
    struct tc_core *core = models_core(&m, 0);
    struct tc_branch forward = {.address = AT, .kind = TC_BRANCH_CONDITIONAL};
    struct tc_branch jump = {.address = AT + 16, .kind = TC_BRANCH_JUMP};
    tc_core_branch(core, &forward, false, 0);
    tc_core_branch(core, &forward, true, 0x2000); /* mispredicted, not in the BTB */
    tc_core_branch(core, &forward, true, 0x2000);
    tc_core_branch(core, &forward, false, 0);  /* mispredicted */
    tc_core_branch(core, &jump, true, 0x3000); /* not in the BTB: redirected by decoding */
    assert_int_equal(models_event(&m, 0, 0, "BR_INST_RETIRED"), 5);
    assert_int_equal(models_event(&m, 0, 0, "BR_TAKEN_RETIRED"), 3);
    assert_int_equal(models_event(&m, 0, 0, "BR_MISS_PRED_RETIRED"), 2);
    assert_int_equal(models_event(&m, 0, 0, "BR_MISS_PRED_TAKEN_RET"), 1);
    assert_int_equal(models_event(&m, 0, 0, "BTB_MISSES"), 3);
    uint64_t cycles = models_event(&m, 0, 0, "CPU_CLK_UNHALTED");
    assert_int_equal(cycles,
                     (uint64_t)(2 * machine.timing.mispredict + machine.timing.redirect + 0.5));
    models_free(&m);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(unknown_branches_are_predicted_by_their_direction),
        TEST(loops_mispredict_at_their_end_if_longer_than_the_history),
        TEST(a_loop_of_k_iterations_from_cold),
        TEST(patterns_are_learned_within_the_histories_reach),
        TEST(learning_an_alternation_takes_what_the_counters_take),
        TEST(decoding_finds_direct_targets),
        TEST(indirect_branches_go_where_they_went_last),
        TEST(returns_are_predicted_as_deep_as_the_stack),
        TEST(a_set_holds_as_many_branches_as_it_has_ways),
        cmocka_unit_test(cores_count_what_the_predictor_says),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
