/* The record writer: JSON Lines under NAME.partial, with a checksum, renamed when whole. */
#ifndef TC_COLLECTOR_RECORD_H
#define TC_COLLECTOR_RECORD_H

#include <jansson.h>
#include <nettle/sha2.h>
#include <stddef.h>
#include <sys/types.h>
#include <time.h>

#include "workloads/common/error.h"

struct tc_record {
    char *path;    /* NAME.jsonl */
    char *partial; /* NAME.jsonl.partial */
    int fd;
    struct sha256_ctx digest;
    off_t length; /* bytes of whole lines */
    size_t lines;
    size_t windows;
};

/* Creates NAME.partial. Errors: errno of the file. tc_record_close() in every case. */
TC_MUST_CHECK int tc_record_open(struct tc_record *record, const char *path, struct tc_error *err);

/* Appends one object as a line; a window is synced to the disk at once. Steals `line`, also on
 * error; NULL is -ENOMEM (so that a builder's failure needs no check of its own). Where a line
 * cannot be written whole, what was written of it is taken back. */
TC_MUST_CHECK int tc_record_write(struct tc_record *record, json_t *line, struct tc_error *err);

/* Writes the footer, syncs, and renames to NAME. */
TC_MUST_CHECK int tc_record_finish(struct tc_record *record, struct tc_error *err);

/* Closes; what is not finished stays as NAME.partial. */
void tc_record_close(struct tc_record *record);

/* Time of day as ISO 8601, UTC, to the microsecond. */
json_t *tc_record_utc(void);
json_t *tc_record_utc_of(const struct timespec *time);

#endif
