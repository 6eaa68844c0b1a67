/* Values on command lines, checked. Every error names the text, what was expected and an example.
 * All return 0 or -EINVAL but where said. Thread-safe. */
#ifndef TC_COMMON_OPTIONS_H
#define TC_COMMON_OPTIONS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "workloads/common/error.h"

/* Largest body that is served or asked for. */
#define TC_SIZE_MOST_BYTES UINT64_C(250000000)

/* A size: "30", "30B", "36KiB", "1MiB", "250MB" (decimal k, M; binary Ki, Mi) [bytes]. */
TC_MUST_CHECK int tc_parse_size(const char *text, uint64_t *bytes, struct tc_error *err);

/* A whole number within [least, most]. */
TC_MUST_CHECK int tc_parse_count(const char *text, uint64_t least, uint64_t most, uint64_t *count,
                                 struct tc_error *err);

/* A time above zero and up to a day: "5", "0.25", "5s", "250ms" [ns]. */
TC_MUST_CHECK int tc_parse_duration(const char *text, uint64_t *ns, struct tc_error *err);

/* CPU ids, each once and each one that this process may run on: "0,2-3". At most `most` of them are
 * written to cpus, in the order given. */
TC_MUST_CHECK int tc_parse_cpus(const char *text, int *cpus, size_t most, size_t *count,
                                struct tc_error *err);

/* The first n CPUs of those that this process may run on. Errors: -ENOTSUP where they are fewer,
 * errno of sched_getaffinity. */
TC_MUST_CHECK int tc_first_cpus(uint32_t n, int *cpus, struct tc_error *err);

/* A numeric address with port: "127.0.0.1:8443", "[::1]:0". */
TC_MUST_CHECK int tc_parse_address(const char *text, struct sockaddr_storage *address,
                                   socklen_t *length, struct tc_error *err);

#endif
