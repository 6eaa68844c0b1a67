/* Why a call failed, in words that a user can act on.
 *
 * Functions that can fail return 0 or -errno and take an optional struct tc_error that gets the
 * message at the place of the failure: what was tried, on what, what was expected, the remedy. */
#ifndef TC_COMMON_ERROR_H
#define TC_COMMON_ERROR_H

#define TC_MUST_CHECK __attribute__((warn_unused_result))

struct tc_error {
    char message[512];
};

/* Formats the message (err may be NULL) and returns -code, so that a caller can
 * `return tc_error_set(err, ENOENT, "...")`. code: a positive errno. Thread-safe per err. */
int tc_error_set(struct tc_error *err, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
