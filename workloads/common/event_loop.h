/* A thin loop over epoll with deadlines. One thread per loop.
 *
 * Deadlines of one kind share their timeout, so a list in the order of setting is a list in the
 * order of expiry: setting, moving and clearing take constant time, and an idle loop sleeps. */
#ifndef TC_COMMON_EVENT_LOOP_H
#define TC_COMMON_EVENT_LOOP_H

#include <stdint.h>
#include <sys/epoll.h>
#include <sys/queue.h>

#include "workloads/common/error.h"

/* Embedded in whatever waits for a file descriptor. */
struct tc_watch {
    void (*ready)(struct tc_watch *watch, uint32_t events);
};

/* Embedded in whatever has a deadline; zeroed before first use. */
struct tc_deadline {
    TAILQ_ENTRY(tc_deadline) link;
    struct tc_deadlines *list; /* NULL: not set */
    uint64_t at_ns;
};

/* One kind of deadline: fields but timeout_ns and expired are the loop's. */
struct tc_deadlines {
    TAILQ_HEAD(, tc_deadline) queue;
    SLIST_ENTRY(tc_deadlines) link;
    uint64_t timeout_ns;
    void (*expired)(struct tc_deadline *deadline); /* already cleared; may set it again */
};

struct tc_loop {
    int epoll_fd;
    uint64_t now_ns; /* CLOCK_MONOTONIC as of the latest tc_loop_run() */
    SLIST_HEAD(, tc_deadlines) kinds;
};

TC_MUST_CHECK int tc_loop_open(struct tc_loop *loop, struct tc_error *err);
void tc_loop_close(struct tc_loop *loop);

/* Watches fd for `events`; closing fd ends it. -errno of epoll_ctl. A watch may still be told of
 * an event that was under way when its fd was closed, within the same tc_loop_run(). */
TC_MUST_CHECK int tc_loop_watch(struct tc_loop *loop, int fd, uint32_t events,
                                struct tc_watch *watch);
TC_MUST_CHECK int tc_loop_rewatch(struct tc_loop *loop, int fd, uint32_t events,
                                  struct tc_watch *watch);

/* Adds a kind of deadline, which must outlive the loop's use. */
void tc_loop_add_deadlines(struct tc_loop *loop, struct tc_deadlines *kind, uint64_t timeout_ns,
                           void (*expired)(struct tc_deadline *deadline));

/* Sets (or moves) the deadline to the loop's now + the kind's timeout. */
void tc_deadline_set(struct tc_loop *loop, struct tc_deadlines *kind, struct tc_deadline *deadline);
void tc_deadline_clear(struct tc_deadline *deadline);

/* Waits for events, at most until the next deadline and at most timeout_ms (-1: no limit), tells
 * the watches, then the expired deadlines. -errno of epoll_wait but EINTR. */
TC_MUST_CHECK int tc_loop_run(struct tc_loop *loop, int timeout_ms);

#endif
