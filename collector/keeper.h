/* A keeper: a small process that starts one command and sees to it that nothing of it is left.
 *
 * The keeper is a child subreaper, so whatever the command forks stays below it, daemons too. It
 * holds one end of a socket whose other end only the collector has: when that closes, because the
 * collector let go or died, the keeper kills everything below it and ends. */
#ifndef TC_COLLECTOR_KEEPER_H
#define TC_COLLECTOR_KEEPER_H

#include <stdbool.h>
#include <sys/types.h>

#include "collector/placement.h"
#include "workloads/common/error.h"

#define TC_KEEPER_TAIL 4096 /* bytes kept of the end of the command's output */

struct tc_keeper_spec {
    const char *what; /* "server", "load": for messages */
    char *const *argv;
    const struct tc_cpus *cpus; /* where the command runs */
    const struct tc_numa *numa; /* NULL: as it is */
    int network;                /* fd of a network namespace; -1: as it is */
    int page;                   /* fd that the command inherits under the same number; -1: none */
};

struct tc_keeper {
    const char *what;
    pid_t pid;     /* the keeper; 0: none */
    pid_t command; /* the process that becomes the command */
    int socket;
    bool ended; /* the command ended, or never came to be */
    char why[256];
    char tail[TC_KEEPER_TAIL + 1]; /* end of its output, once it has ended */
};

/* Forks the keeper, and below it the process that will be the command, which waits. Errors: errno
 * of fork and of entering namespace. tc_keeper_close() on success. */
TC_MUST_CHECK int tc_keeper_start(struct tc_keeper *keeper, const struct tc_keeper_spec *spec,
                                  struct tc_error *err);

/* Lets the waiting process become the command. */
TC_MUST_CHECK int tc_keeper_release(struct tc_keeper *keeper, struct tc_error *err);

/* 0 while the command runs (a command that goes into the background does); -ESRCH once it ended:
 * the message has its status and the last lines of its output. One system call. */
TC_MUST_CHECK int tc_keeper_check(struct tc_keeper *keeper, struct tc_error *err);

/* SIGTERM to the command, SIGKILL to all that is left after the grace; then the keeper ends. Fills
 * why and tail. NULL and a stopped keeper are accepted. */
void tc_keeper_stop(struct tc_keeper *keeper, int grace_ms);

/* Kills what still runs and closes. NULL and a zeroed keeper are accepted. */
void tc_keeper_close(struct tc_keeper *keeper);

#endif
