/* The content of the static bodies: one endless printable text of which each body is a prefix, so
 * that a single mapping serves every size and a client can check any byte by its offset. */
#ifndef TC_COMMON_PATTERN_H
#define TC_COMMON_PATTERN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes after which the text repeats: prime, so that no power of two of displacement goes unseen,
 * and small enough to stay in a first-level cache while a client compares. */
#define TC_PATTERN_PERIOD 4093

/* Fills buffer with the text's bytes offset ... offset + length - 1. */
void tc_pattern_fill(uint64_t offset, char *buffer, size_t length);

/* True where buffer holds exactly those bytes. */
bool tc_pattern_matches(uint64_t offset, const char *buffer, size_t length);

#endif
