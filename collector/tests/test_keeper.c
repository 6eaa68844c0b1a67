#include "collector/keeper.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "collector/tests/check.h"

static const struct tc_cpus first_cpu = {.count = 1, .ids = {0}};

static struct tc_keeper_spec shell(char *const *argv)
{
    return (struct tc_keeper_spec){
        .what = "server", .argv = argv, .cpus = &first_cpu, .network = -1, .page = -1};
}

static void start(struct tc_keeper *keeper, char *script)
{
    char *const argv[] = {"sh", "-c", script, NULL};
    const struct tc_keeper_spec spec = shell(argv);
    assert_int_equal(tc_keeper_start(keeper, &spec, NULL), 0);
    assert_int_equal(tc_keeper_release(keeper, NULL), 0);
}

static void nap(void)
{
    const struct timespec pause = {.tv_nsec = 5000000};
    (void)nanosleep(&pause, NULL);
}

/* The message once the command ended. */
static struct tc_error wait_for_end(struct tc_keeper *keeper)
{
    struct tc_error err = {""};
    while (tc_keeper_check(keeper, &err) == 0) {
        nap();
    }
    return err;
}

/* Waits for a line of digits that the command writes. */
static pid_t pid_from(const char *path)
{
    long pid = 0;
    while (pid == 0) {
        FILE *file = fopen(path, "r");
        char text[32] = "";
        if (file != NULL) {
            if (fgets(text, sizeof(text), file) != NULL && strchr(text, '\n') != NULL) {
                pid = strtol(text, NULL, 10);
            }
            (void)fclose(file);
        }
        nap();
    }
    (void)unlink(path);
    return (pid_t)pid;
}

static void tells_status_and_last_words(void **state)
{
    (void)state;
    struct tc_keeper keeper;
    start(&keeper, "echo out; echo words >&2; exit 3");
    struct tc_error err = wait_for_end(&keeper);
    assert_string_equal(err.message, "the server exited with status 3");
    assert_string_equal(keeper.tail, "out\nwords\n");
    tc_keeper_close(&keeper);
    start(&keeper, "kill -SEGV $$");
    err = wait_for_end(&keeper);
    assert_non_null(strstr(err.message, "killed by signal 11"));
    tc_keeper_close(&keeper);
}

static void keeps_the_end_of_much_output(void **state)
{
    (void)state;
    struct tc_keeper keeper;
    start(&keeper, "i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done; exit 1");
    (void)wait_for_end(&keeper);
    size_t length = strlen(keeper.tail);
    assert_int_equal(length, TC_KEEPER_TAIL);
    assert_string_equal(keeper.tail + length - 11, "line 19999\n");
    tc_keeper_close(&keeper);
}

static void says_what_cannot_be_executed(void **state)
{
    (void)state;
    char *const argv[] = {"/nonexistent/server", NULL};
    const struct tc_keeper_spec spec = shell(argv);
    struct tc_keeper keeper;
    assert_int_equal(tc_keeper_start(&keeper, &spec, NULL), 0);
    assert_int_equal(tc_keeper_release(&keeper, NULL), 0);
    struct tc_error err = wait_for_end(&keeper);
    assert_non_null(strstr(err.message, "/nonexistent/server: No such file"));
    tc_keeper_close(&keeper);
}

/* Starts a script that writes a process's number to $PID_FILE; returns that number. */
static pid_t start_telling_pid(struct tc_keeper *keeper, char *script)
{
    char path[] = "/tmp/tlscost-keeper-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    (void)close(fd);
    assert_int_equal(setenv("PID_FILE", path, 1), 0);
    start(keeper, script);
    return pid_from(path);
}

static void a_daemon_is_no_death_and_dies_with_the_keeper(void **state)
{
    (void)state;
    struct tc_keeper keeper;
    /* Ignores SIGTERM, so that it takes the keeper to kill it. */
    pid_t daemon = start_telling_pid(&keeper, "setsid sh -c 'trap \"\" TERM; echo $$ >$PID_FILE; "
                                              "while :; do sleep 1; done' & exit 0");
    assert_int_equal(tc_keeper_check(&keeper, NULL), 0);
    assert_int_equal(kill(daemon, 0), 0);
    tc_keeper_stop(&keeper, 100);
    assert_int_equal(kill(daemon, 0), -1);
    assert_int_equal(errno, ESRCH);
    tc_keeper_close(&keeper);
}

static void stops_by_sigterm_first(void **state)
{
    (void)state;
    struct tc_keeper keeper;
    (void)start_telling_pid(&keeper, "trap 'echo drained; exit 0' TERM; echo $$ >$PID_FILE; "
                                     "while :; do sleep 0.01; done");
    tc_keeper_stop(&keeper, 10000);
    assert_string_equal(keeper.tail, "drained\n");
    assert_string_equal(keeper.why, "exited with status 0");
    tc_keeper_close(&keeper);
}

/* A process dies with its keeper though it was never let go. */
static void an_unreleased_command_leaves_nothing(void **state)
{
    (void)state;
    char *const argv[] = {"sh", "-c", "exit 0", NULL};
    const struct tc_keeper_spec spec = shell(argv);
    struct tc_keeper keeper;
    assert_int_equal(tc_keeper_start(&keeper, &spec, NULL), 0);
    pid_t command = keeper.command;
    tc_keeper_close(&keeper);
    assert_int_equal(kill(command, 0), -1);
    tc_keeper_close(&keeper);
    tc_keeper_close(NULL);
}

/* Nobody is to kill a keeper, but even then its command goes. */
static void a_killed_keeper_takes_its_command_along(void **state)
{
    (void)state;
    struct tc_keeper keeper;
    start(&keeper, "exec sleep 1000");
    nap();
    assert_int_equal(tc_keeper_check(&keeper, NULL), 0);
    assert_int_equal(kill(keeper.pid, SIGKILL), 0);
    struct tc_error err = wait_for_end(&keeper);
    assert_non_null(strstr(err.message, "its keeper is gone"));
    while (kill(keeper.command, 0) == 0) {
        nap(); /* reaped by whoever adopts orphans */
    }
    tc_keeper_close(&keeper);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tells_status_and_last_words),
        cmocka_unit_test(keeps_the_end_of_much_output),
        cmocka_unit_test(says_what_cannot_be_executed),
        cmocka_unit_test(a_daemon_is_no_death_and_dies_with_the_keeper),
        cmocka_unit_test(stops_by_sigterm_first),
        cmocka_unit_test(an_unreleased_command_leaves_nothing),
        cmocka_unit_test(a_killed_keeper_takes_its_command_along),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
