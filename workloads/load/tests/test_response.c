#include "workloads/load/response.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "workloads/common/pattern.h"

#define BODY_BYTES 300

enum ending { STAYS_OPEN, CLOSES };

struct message {
    char bytes[2048];
    size_t length;
};

static void append_text(struct message *message, const char *text)
{
    size_t length = strlen(text);
    memcpy(message->bytes + message->length, text, length);
    message->length += length;
}

static void append_body(struct message *message, uint64_t offset, size_t length)
{
    tc_pattern_fill(offset, message->bytes + message->length, length);
    message->length += length;
}

static struct message with_head(const char *head, size_t body)
{
    struct message message = {.length = 0};
    append_text(&message, head);
    append_body(&message, 0, body);
    return message;
}

static struct message chunked(void)
{
    struct message message =
        with_head("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n64\r\n", 100);
    append_text(&message, "\r\nc8;name=value\r\n");
    append_body(&message, 100, 200);
    append_text(&message, "\r\n0\r\nTrailer: x\r\n\r\n");
    return message;
}

#define SIZED_HEAD "HTTP/1.1 200 OK\r\nContent-Length: 300\r\n\r\n"

static const struct tc_response_rules rules_of[] = {
    {.check = TC_CHECK_STATUS, .sized = true, .expected_bytes = BODY_BYTES},
    {.check = TC_CHECK_SIZE, .sized = true, .expected_bytes = BODY_BYTES},
    {.check = TC_CHECK_PATTERN, .sized = true, .expected_bytes = BODY_BYTES},
    {.check = TC_CHECK_PATTERN},
};
#define RULES (sizeof(rules_of) / sizeof(rules_of[0]))

static enum tc_response_state feed(struct tc_response *response, const char *data, size_t length)
{
    return length == 0 ? response->state : tc_response_feed(response, data, length);
}

/* Feeds the message cut at every byte, and byte by byte: the result must be the same. */
static void expect(const struct message *message, enum ending ending,
                   const struct tc_response_rules *rules, enum tc_response_state state,
                   enum tc_count fault)
{
    struct tc_response response;
    for (size_t cut = 0; cut <= message->length; cut++) {
        tc_response_begin(&response, rules);
        (void)feed(&response, message->bytes, cut);
        (void)feed(&response, message->bytes + cut, message->length - cut);
        if (ending == CLOSES) {
            (void)tc_response_end(&response);
        }
        assert_int_equal(response.state, state);
        if (state == TC_RESPONSE_BAD) {
            assert_int_equal(response.fault, fault);
        }
    }
    tc_response_begin(&response, rules);
    for (size_t i = 0; i < message->length; i++) {
        (void)tc_response_feed(&response, message->bytes + i, 1);
    }
    if (ending == CLOSES) {
        (void)tc_response_end(&response);
    }
    assert_int_equal(response.state, state);
}

static void test_whole_responses_at_every_cut(void **state)
{
    (void)state;
    struct message sized = with_head(SIZED_HEAD, BODY_BYTES);
    struct message pieces = chunked();
    struct message until_close =
        with_head("HTTP/1.0 200 ok\r\nContent-type: text/plain\r\n\r\n", BODY_BYTES);
    for (size_t i = 0; i < RULES; i++) {
        expect(&sized, STAYS_OPEN, &rules_of[i], TC_RESPONSE_WHOLE, 0);
        expect(&sized, CLOSES, &rules_of[i], TC_RESPONSE_WHOLE, 0);
        expect(&pieces, STAYS_OPEN, &rules_of[i], TC_RESPONSE_WHOLE, 0);
        expect(&until_close, STAYS_OPEN, &rules_of[i], TC_RESPONSE_MORE, 0);
        expect(&until_close, CLOSES, &rules_of[i], TC_RESPONSE_WHOLE, 0);
    }
}

static void test_an_empty_body_is_whole(void **state)
{
    (void)state;
    struct message empty = with_head("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 0);
    const struct tc_response_rules rules[] = {{.check = TC_CHECK_SIZE, .sized = true},
                                              {.check = TC_CHECK_PATTERN, .sized = true}};
    expect(&empty, STAYS_OPEN, &rules[0], TC_RESPONSE_WHOLE, 0);
    expect(&empty, STAYS_OPEN, &rules[1], TC_RESPONSE_WHOLE, 0);
}

static void test_every_fault_has_its_kind(void **state)
{
    (void)state;
    struct message status = with_head("HTTP/1.1 404 Not Found\r\nContent-Length: 300\r\n\r\n", 300);
    struct message length = with_head("HTTP/1.1 200 OK\r\nContent-Length: 299\r\n\r\n", 299);
    struct message wrong = with_head(SIZED_HEAD, BODY_BYTES);
    wrong.bytes[wrong.length - 1] ^= 1;
    struct message shorter = with_head(SIZED_HEAD, BODY_BYTES - 1);
    struct message longer = with_head(SIZED_HEAD, BODY_BYTES + 1);
    struct message short_until_close = with_head("HTTP/1.0 200 ok\r\n\r\n", BODY_BYTES - 1);
    struct message long_until_close = with_head("HTTP/1.0 200 ok\r\n\r\n", BODY_BYTES + 1);
    struct message nothing = {.length = 0};
    struct message garbage = with_head("220 smtp.example ESMTP\r\n", 0);
    for (size_t i = 0; i < RULES; i++) {
        const struct tc_response_rules *rules = &rules_of[i];
        bool sized = rules->sized && rules->check >= TC_CHECK_SIZE;
        expect(&status, STAYS_OPEN, rules, TC_RESPONSE_BAD, TC_COUNT_ERROR_STATUS);
        expect(&shorter, CLOSES, rules, TC_RESPONSE_BAD, TC_COUNT_ERROR_RESET);
        expect(&longer, STAYS_OPEN, rules, TC_RESPONSE_BAD, TC_COUNT_ERROR_LENGTH);
        expect(&garbage, STAYS_OPEN, rules, TC_RESPONSE_BAD, TC_COUNT_ERROR_PROTOCOL);
        expect(&nothing, CLOSES, rules, TC_RESPONSE_BAD, TC_COUNT_ERROR_RESET);
        expect(&length, STAYS_OPEN, rules, sized ? TC_RESPONSE_BAD : TC_RESPONSE_WHOLE,
               TC_COUNT_ERROR_LENGTH);
        expect(&short_until_close, CLOSES, rules, sized ? TC_RESPONSE_BAD : TC_RESPONSE_WHOLE,
               TC_COUNT_ERROR_LENGTH);
        expect(&long_until_close, CLOSES, rules, sized ? TC_RESPONSE_BAD : TC_RESPONSE_WHOLE,
               TC_COUNT_ERROR_LENGTH);
        expect(&wrong, STAYS_OPEN, rules,
               rules->check == TC_CHECK_PATTERN ? TC_RESPONSE_BAD : TC_RESPONSE_WHOLE,
               TC_COUNT_ERROR_CONTENT);
    }
}

static void test_the_body_may_be_thrown_away_where_its_bytes_are_not_checked(void **state)
{
    (void)state;
    struct message message = with_head(SIZED_HEAD, 10);
    struct tc_response response;
    tc_response_begin(&response, &rules_of[1]);
    assert_int_equal(tc_response_feed(&response, message.bytes, message.length), TC_RESPONSE_MORE);
    assert_int_equal(response.skippable_bytes, BODY_BYTES - 10);
    assert_int_equal(tc_response_skip(&response, 289), TC_RESPONSE_MORE);
    assert_int_equal(tc_response_skip(&response, 1), TC_RESPONSE_WHOLE);
    assert_int_equal(response.body_bytes, BODY_BYTES);

    tc_response_begin(&response, &rules_of[2]);
    assert_int_equal(tc_response_feed(&response, message.bytes, message.length), TC_RESPONSE_MORE);
    assert_int_equal(response.skippable_bytes, 0);
}

static void test_whether_the_server_keeps_the_connection(void **state)
{
    (void)state;
    const struct {
        const char *head;
        bool keeps;
    } cases[] = {
        {"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", true},
        {"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", false},
        {"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", false},
        {"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n", true},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct tc_response response;
        tc_response_begin(&response, &rules_of[3]);
        assert_int_equal(tc_response_feed(&response, cases[i].head, strlen(cases[i].head)),
                         TC_RESPONSE_WHOLE);
        assert_int_equal(response.keep_alive, cases[i].keeps);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole_responses_at_every_cut),
        cmocka_unit_test(test_an_empty_body_is_whole),
        cmocka_unit_test(test_every_fault_has_its_kind),
        cmocka_unit_test(test_the_body_may_be_thrown_away_where_its_bytes_are_not_checked),
        cmocka_unit_test(test_whether_the_server_keeps_the_connection),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
