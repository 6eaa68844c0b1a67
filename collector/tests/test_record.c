#include "collector/record.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "collector/tests/check.h"

struct place {
    char directory[64];
    char path[96];
    char partial[112];
};

static int make_place(void **state)
{
    static struct place place;
    (void)snprintf(place.directory, sizeof(place.directory), "/tmp/tlscost-record-XXXXXX");
    if (mkdtemp(place.directory) == NULL) {
        return -1;
    }
    (void)snprintf(place.path, sizeof(place.path), "%s/r.jsonl", place.directory);
    (void)snprintf(place.partial, sizeof(place.partial), "%s.partial", place.path);
    *state = &place;
    return 0;
}

static int remove_place(void **state)
{
    const struct place *place = *state;
    (void)unlink(place->path);
    (void)unlink(place->partial);
    return rmdir(place->directory);
}

static size_t read_file(const char *path, char *text, size_t size)
{
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    size_t length = fread(text, 1, size - 1, file);
    text[length] = '\0';
    (void)fclose(file);
    return length;
}

static void a_whole_record_has_its_checksum(void **state)
{
    const struct place *place = *state;
    struct tc_record record;
    char text[4096];
    unsigned char hash[EVP_MAX_MD_SIZE];
    unsigned hash_length;
    assert_int_equal(tc_record_open(&record, place->path, NULL), 0);
    assert_int_equal(tc_record_write(&record, json_pack("{s:s}", "type", "header"), NULL), 0);
    assert_int_equal(
        tc_record_write(&record, json_pack("{s:s, s:s}", "type", "window", "x", "é\n"), NULL), 0);
    assert_int_equal(access(place->path, F_OK), -1);
    assert_int_equal(tc_record_finish(&record, NULL), 0);
    tc_record_close(&record);
    assert_int_equal(access(place->partial, F_OK), -1);

    (void)read_file(place->path, text, sizeof(text));
    char *footer_line = strstr(text, "{\"type\":\"footer\"");
    assert_non_null(footer_line);
    json_t *footer = json_loads(footer_line, 0, NULL);
    assert_non_null(footer);
    assert_int_equal(json_integer_value(json_object_get(footer, "lines")), 2);
    assert_int_equal(json_integer_value(json_object_get(footer, "windows")), 1);
    assert_int_equal(
        EVP_Digest(text, (size_t)(footer_line - text), hash, &hash_length, EVP_sha256(), NULL), 1);
    const char *hex = json_string_value(json_object_get(footer, "sha256"));
    assert_non_null(hex);
    assert_int_equal(strlen(hex), 64);
    for (unsigned i = 0; i < hash_length; i++) {
        char pair[3];
        (void)snprintf(pair, sizeof(pair), "%02x", hash[i]);
        assert_memory_equal(hex + (size_t)2 * i, pair, 2);
    }
    json_decref(footer);
}

static void an_unfinished_record_stays_partial(void **state)
{
    const struct place *place = *state;
    struct tc_record record;
    char text[256];
    assert_int_equal(tc_record_open(&record, place->path, NULL), 0);
    assert_int_equal(tc_record_write(&record, json_pack("{s:i}", "a", 1), NULL), 0);
    tc_record_close(&record);
    assert_int_equal(access(place->path, F_OK), -1);
    (void)read_file(place->partial, text, sizeof(text));
    assert_string_equal(text, "{\"a\":1}\n");
}

static void a_full_disk_leaves_whole_lines(void **state)
{
    const struct place *place = *state;
    struct tc_record record;
    struct tc_error err;
    char text[4096];
    struct rlimit old;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    const struct rlimit small = {.rlim_cur = 1000, .rlim_max = old.rlim_max};
    (void)signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(tc_record_open(&record, place->path, NULL), 0);
    assert_int_equal(tc_record_write(&record, json_pack("{s:i}", "a", 1), NULL), 0);
    char big[2000];
    memset(big, 'x', sizeof(big) - 1);
    big[sizeof(big) - 1] = '\0';
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    int rc = tc_record_write(&record, json_pack("{s:s}", "b", big), &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_int_equal(rc, -EFBIG);
    assert_non_null(strstr(err.message, place->partial));
    assert_non_null(strstr(err.message, "1 whole lines"));
    tc_record_close(&record);
    (void)read_file(place->partial, text, sizeof(text));
    assert_string_equal(text, "{\"a\":1}\n");
}

static void a_directory_that_is_not_there_is_named(void **state)
{
    (void)state;
    struct tc_record record;
    struct tc_error err;
    assert_int_equal(tc_record_open(&record, "/nonexistent/r.jsonl", &err), -ENOENT);
    assert_non_null(strstr(err.message, "/nonexistent/r.jsonl.partial"));
    tc_record_close(&record);
}

static void a_missing_line_is_an_error(void **state)
{
    const struct place *place = *state;
    struct tc_record record;
    assert_int_equal(tc_record_open(&record, place->path, NULL), 0);
    assert_int_equal(tc_record_write(&record, NULL, NULL), -ENOMEM);
    tc_record_close(&record);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_whole_record_has_its_checksum, make_place, remove_place),
        cmocka_unit_test_setup_teardown(an_unfinished_record_stays_partial, make_place,
                                        remove_place),
        cmocka_unit_test_setup_teardown(a_full_disk_leaves_whole_lines, make_place, remove_place),
        cmocka_unit_test(a_directory_that_is_not_there_is_named),
        cmocka_unit_test_setup_teardown(a_missing_line_is_an_error, make_place, remove_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
