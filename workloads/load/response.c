#include "workloads/load/response.h"

#include "workloads/common/pattern.h"

static int fault(struct tc_response *response, enum tc_count kind)
{
    response->state = TC_RESPONSE_BAD;
    response->fault = kind;
    return -1; /* stops the parser */
}

static bool checks(const struct tc_response *response, enum tc_check check)
{
    return response->rules->check >= check;
}

static bool wrong_size(const struct tc_response *response, uint64_t bytes)
{
    return checks(response, TC_CHECK_SIZE) && response->rules->sized &&
           bytes != response->rules->expected_bytes;
}

static int on_headers_complete(http_parser *parser)
{
    struct tc_response *response = parser->data;
    bool has_length = (parser->flags & F_CONTENTLENGTH) != 0;
    response->headers_complete = true;
    if (parser->status_code != 200) {
        return fault(response, TC_COUNT_ERROR_STATUS);
    }
    if (has_length && wrong_size(response, parser->content_length)) {
        return fault(response, TC_COUNT_ERROR_LENGTH);
    }
    response->keep_alive = http_should_keep_alive(parser) != 0;
    if (has_length && !checks(response, TC_CHECK_PATTERN)) {
        response->skips = true;
        response->skippable_bytes = parser->content_length;
        return 1; /* the message has no body as far as the parser is concerned */
    }
    return 0;
}

static int on_body(http_parser *parser, const char *data, size_t length)
{
    struct tc_response *response = parser->data;
    if (checks(response, TC_CHECK_SIZE) && response->rules->sized &&
        length > response->rules->expected_bytes - response->body_bytes) {
        return fault(response, TC_COUNT_ERROR_LENGTH);
    }
    if (checks(response, TC_CHECK_PATTERN) &&
        !tc_pattern_matches(response->body_bytes, data, length)) {
        return fault(response, TC_COUNT_ERROR_CONTENT);
    }
    response->body_bytes += length;
    return 0;
}

static int on_message_complete(http_parser *parser)
{
    struct tc_response *response = parser->data;
    if (!response->skips) {
        if (wrong_size(response, response->body_bytes)) {
            return fault(response, TC_COUNT_ERROR_LENGTH);
        }
        response->state = TC_RESPONSE_WHOLE;
    }
    /* Else what follows would be taken for another message. */
    http_parser_pause(parser, 1);
    return 0;
}

static const http_parser_settings settings = {
    .on_headers_complete = on_headers_complete,
    .on_body = on_body,
    .on_message_complete = on_message_complete,
};

void tc_response_begin(struct tc_response *response, const struct tc_response_rules *rules)
{
    *response = (struct tc_response){.rules = rules, .state = TC_RESPONSE_MORE};
    http_parser_init(&response->parser, HTTP_RESPONSE);
    response->parser.data = response;
}

enum tc_response_state tc_response_skip(struct tc_response *response, uint64_t bytes)
{
    if (bytes > response->skippable_bytes) {
        (void)fault(response, TC_COUNT_ERROR_LENGTH);
        return response->state;
    }
    response->skippable_bytes -= bytes;
    response->body_bytes += bytes;
    if (response->skippable_bytes == 0) {
        response->state = TC_RESPONSE_WHOLE;
    }
    return response->state;
}

enum tc_response_state tc_response_feed(struct tc_response *response, const char *data,
                                        size_t length)
{
    if (response->state == TC_RESPONSE_BAD) {
        return response->state;
    }
    size_t used = 0;
    if (!response->skips && response->state == TC_RESPONSE_MORE) {
        used = http_parser_execute(&response->parser, &settings, data, length);
        enum http_errno code = HTTP_PARSER_ERRNO(&response->parser);
        if (response->state == TC_RESPONSE_BAD) {
            return response->state;
        }
        if (code != HPE_OK && code != HPE_PAUSED) {
            (void)fault(response, TC_COUNT_ERROR_PROTOCOL);
            return response->state;
        }
    }
    if (response->skips) {
        return tc_response_skip(response, length - used);
    }
    if (used < length) {
        (void)fault(response, TC_COUNT_ERROR_LENGTH);
    }
    return response->state;
}

enum tc_response_state tc_response_end(struct tc_response *response)
{
    if (response->state == TC_RESPONSE_MORE && !response->skips) {
        (void)http_parser_execute(&response->parser, &settings, NULL, 0);
    }
    if (response->state == TC_RESPONSE_MORE) {
        (void)fault(response, TC_COUNT_ERROR_RESET);
    }
    return response->state;
}
