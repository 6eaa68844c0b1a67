#include "workloads/server/response.h"

#include <string.h>

static char *put_number(char *at, uint64_t number)
{
    char digits[20];
    size_t count = 0;
    do {
        digits[count++] = (char)('0' + number % 10);
        number /= 10;
    } while (number > 0);
    while (count > 0) {
        *at++ = digits[--count];
    }
    return at;
}

static const char *status_line(int status)
{
    switch (status) {
    case 200:
        return "HTTP/1.1 200 OK\r\n";
    case 404:
        return "HTTP/1.1 404 Not Found\r\n";
    case 405:
        return "HTTP/1.1 405 Method Not Allowed\r\nAllow: GET, HEAD\r\n";
    case 413:
        return "HTTP/1.1 413 Content Too Large\r\n";
    case 431:
        return "HTTP/1.1 431 Request Header Fields Too Large\r\n";
    case 505:
        return "HTTP/1.1 505 HTTP Version Not Supported\r\n";
    default:
        return "HTTP/1.1 400 Bad Request\r\n";
    }
}

/* strftime's names are English: the program never leaves the C locale. */
static const char *date_text(struct tc_response_date *date)
{
    struct timespec now;
    struct tm parts;
    (void)clock_gettime(CLOCK_REALTIME_COARSE, &now); /* cannot fail for this clock */
    if (now.tv_sec != date->second && gmtime_r(&now.tv_sec, &parts) != NULL) {
        date->second = now.tv_sec;
        (void)strftime(date->text, sizeof(date->text), "%a, %d %b %Y %H:%M:%S GMT", &parts);
    }
    return date->text;
}

size_t tc_response_head(char head[static TC_RESPONSE_HEAD_MOST], int status,
                        const struct tc_request *request, uint64_t content_bytes,
                        struct tc_response_date *date)
{
    char *at = stpcpy(head, status_line(status));
    at = stpcpy(at, "Date: ");
    at = stpcpy(at, date_text(date));
    at = stpcpy(at, "\r\nContent-Type: text/plain\r\nContent-Length: ");
    at = put_number(at, content_bytes);
    if (!request->keep_alive) {
        at = stpcpy(at, "\r\nConnection: close\r\n\r\n");
    } else if (request->is_http_1_0) {
        at = stpcpy(at, "\r\nConnection: keep-alive\r\n\r\n");
    } else {
        at = stpcpy(at, "\r\n\r\n");
    }
    return (size_t)(at - head);
}
