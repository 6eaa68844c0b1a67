/* The response reader on arbitrary bytes: no fault of memory, and the same verdict however the
 * bytes are cut into pieces. */
#include <stdint.h>
#include <stdlib.h>

#include "workloads/load/response.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static enum tc_response_state read_in_pieces(const struct tc_response_rules *rules,
                                             const char *bytes, size_t length, size_t piece,
                                             struct tc_response *response)
{
    tc_response_begin(response, rules);
    for (size_t at = 0; at < length; at += piece) {
        size_t part = length - at < piece ? length - at : piece;
        (void)tc_response_feed(response, bytes + at, part);
    }
    return tc_response_end(response);
}

/* The first byte chooses the rules and the pieces, the second the expected size. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2) {
        return 0;
    }
    const struct tc_response_rules rules = {
        .check = (enum tc_check)(data[0] % 3),
        .sized = (data[0] & 0x80) != 0,
        .expected_bytes = data[1],
    };
    size_t piece = 1 + (data[0] / 3) % 16;
    const char *bytes = (const char *)data + 2;
    struct tc_response whole;
    struct tc_response cut;
    enum tc_response_state expected = read_in_pieces(&rules, bytes, size - 2, size, &whole);
    enum tc_response_state found = read_in_pieces(&rules, bytes, size - 2, piece, &cut);
    if (expected == TC_RESPONSE_MORE || expected != found) {
        abort();
    }
    if (expected == TC_RESPONSE_WHOLE && whole.body_bytes != cut.body_bytes) {
        abort();
    }
    return 0;
}
