#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "workloads/server/request.h"

enum { HEADER_MOST = 512, MOST = 16 };

struct answer {
    uint64_t size;
    int status;
    bool is_head;
    bool keep_alive;
    bool is_http_1_0;
};

/* Every answer to the stream, which is given in pieces that end at `first` and then every `step`
 * bytes; the rest of what a piece holds beyond a request's end is given again, as a server does. */
static size_t answers(const char *data, size_t length, size_t first, size_t step,
                      struct answer list[MOST])
{
    struct tc_request request;
    size_t count = 0;
    size_t at = 0;
    size_t end = first;
    tc_request_begin(&request, HEADER_MOST);
    while (at < length && count < MOST) {
        size_t used = 0;
        end = end < length ? end : length;
        int status = tc_request_feed(&request, data + at, end - at, &used);
        at += used;
        if (status == 0) {
            assert_int_equal(at, end);
            end += step;
            continue;
        }
        list[count++] = (struct answer){status == 200 ? request.size : 0, status, request.is_head,
                                        request.keep_alive, request.is_http_1_0};
        if (!request.keep_alive) {
            break;
        }
        tc_request_begin(&request, HEADER_MOST);
    }
    return count;
}

static void expect(const char *data, size_t length, const struct answer *wanted, size_t count)
{
    for (size_t first = 1; first <= length; first++) {
        for (size_t step = 1; step <= length; step = step * 3 + 1) {
            struct answer got[MOST] = {{0}};
            assert_int_equal(answers(data, length, first, step, got), count);
            for (size_t i = 0; i < count; i++) {
                assert_int_equal(got[i].status, wanted[i].status);
                assert_int_equal(got[i].size, wanted[i].size);
                assert_int_equal(got[i].is_head, wanted[i].is_head);
                assert_int_equal(got[i].keep_alive, wanted[i].keep_alive);
                assert_int_equal(got[i].is_http_1_0, wanted[i].is_http_1_0);
            }
        }
    }
}

#define H "Host: localhost\r\n"

static void pipelined_requests_however_split(void **state)
{
    static const char data[] =
        "GET /30 HTTP/1.1\r\n" H "\r\n"
        "HEAD /36864?x=1 HTTP/1.1\r\nhOST: a\r\nUser-Agent: b\r\n\r\n"
        "GET http://localhost:8443/1048576 HTTP/1.1\r\n" H "Upgrade: h2c\r\n"
        "Connection: Upgrade\r\n\r\n"
        "POST /30 HTTP/1.1\r\n" H "Content-Length: 5\r\n\r\nhello"
        "PUT /30 HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nA: b\r\n\r\n"
        "GET /x HTTP/1.1\r\n" H "\r\n"
        "GET /30 HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
        "\r\nGET /0 HTTP/1.0\r\n\r\n"
        "GET /never HTTP/1.1\r\n" H "\r\n";
    static const struct answer wanted[] = {
        {30, 200, false, true, false},      {36864, 200, true, true, false},
        {1048576, 200, false, true, false}, {0, 405, false, true, false},
        {0, 405, false, true, false},       {0, 404, false, true, false},
        {30, 200, false, true, true},       {0, 200, false, false, true},
    };
    (void)state;
    expect(data, sizeof(data) - 1, wanted, sizeof(wanted) / sizeof(wanted[0]));
}

static void single(const char *data, int status)
{
    const struct answer wanted = {0, status, false, false, false};
    struct answer got[MOST] = {{0}};
    for (size_t first = 1; first <= strlen(data); first++) {
        size_t count = answers(data, strlen(data), first, 1, got);
        if (count != 1 || got[0].status != wanted.status || got[0].keep_alive) {
            fail_msg("%s: %zu answers, status %d, expected %d", data, count, got[0].status, status);
        }
    }
}

static void malformed_requests(void **state)
{
    (void)state;
    single("\x16\x03\x01\x02\x00 hello", 400);
    single("GET\r\n\r\n", 400);
    single("BREW /30 HTTP/1.1\r\n" H "\r\n", 400);
    single("GET /30 HTTP/1.1\r\n\r\n", 400);
    single("GET /30 HTTP/1.1\r\n" H H "\r\n", 400);
    single("GET /30 HTTP/1.1\r\nHo st: a\r\n\r\n", 400);
    single("GET /30 HTTP/1.1\r\nHosts: a\r\nHos: b\r\n\r\n", 400);
    single("GET /30 HTTP/2.0\r\n" H "\r\n", 505);
}

static void targets(void **state)
{
    static const char *const unknown[] = {"/",   "/030",    "/-1",      "/+1",
                                          "/1x", "//30",    "*",        "/30/",
                                          "/ ",  "/%33%30", "/30.html", "/99999999999999999999999"};
    (void)state;
    for (size_t i = 0; i < sizeof(unknown) / sizeof(unknown[0]); i++) {
        char data[128];
        struct answer got[MOST] = {{0}};
        int length = snprintf(data, sizeof(data), "GET %s HTTP/1.1\r\n" H "\r\n", unknown[i]);
        if (strchr(unknown[i], ' ') != NULL) {
            continue;
        }
        assert_int_equal(answers(data, (size_t)length, (size_t)length, 1, got), 1);
        if (got[0].status != 404) {
            fail_msg("%s: %d", unknown[i], got[0].status);
        }
    }
}

/* The limit strikes at exactly one byte, wherever the pieces end. */
static void limits(void **state)
{
    static const char end[4] = {'\r', '\n', '\r', '\n'};
    char data[4 * HEADER_MOST];
    struct answer got[MOST] = {{0}};
    (void)state;
    for (size_t total = HEADER_MOST - 2; total <= HEADER_MOST + 2; total++) {
        int head = snprintf(data, sizeof(data), "GET /30 HTTP/1.1\r\n" H "X: ");
        memset(data + head, 'x', sizeof(data) - (size_t)head);
        memcpy(data + total - 4, end, sizeof(end));
        for (size_t first = 1; first <= total; first++) {
            assert_int_equal(answers(data, total, first, 7, got), 1);
            assert_int_equal(got[0].status, total <= HEADER_MOST ? 200 : 431);
            assert_int_equal(got[0].keep_alive, total <= HEADER_MOST);
        }
    }
    int head = snprintf(data, sizeof(data), "GET /%0300d HTTP/1.1\r\n" H "\r\n", 1);
    for (size_t first = 1; first <= (size_t)head; first++) {
        assert_int_equal(answers(data, (size_t)head, first, 1, got), 1);
        assert_int_equal(got[0].status, 404);
    }
}

static void content_has_a_limit(void **state)
{
    static char data[TC_REQUEST_CONTENT_MOST + 200];
    struct answer got[MOST] = {{0}};
    (void)state;
    for (int over = 0; over < 2; over++) {
        /* The header's last byte counts to the content. */
        int head =
            snprintf(data, sizeof(data), "POST /30 HTTP/1.1\r\n" H "Content-Length: %d\r\n\r\n",
                     TC_REQUEST_CONTENT_MOST - 1 + over);
        memset(data + head, 'x', sizeof(data) - (size_t)head);
        size_t total = (size_t)head + TC_REQUEST_CONTENT_MOST - 1 + (size_t)over;
        for (size_t first = 1; first < 200; first += 13) {
            assert_int_equal(answers(data, total, first, 1000, got), 1);
            assert_int_equal(got[0].status, over == 0 ? 405 : 413);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pipelined_requests_however_split),
        cmocka_unit_test(malformed_requests),
        cmocka_unit_test(targets),
        cmocka_unit_test(limits),
        cmocka_unit_test(content_has_a_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
