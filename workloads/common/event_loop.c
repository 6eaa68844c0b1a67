#include "workloads/common/event_loop.h"

#include <errno.h>
#include <limits.h>
#include <stddef.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { BATCH = 256 };

static uint64_t now_ns(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now); /* cannot fail for this clock */
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

int tc_loop_open(struct tc_loop *loop, struct tc_error *err)
{
    loop->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (loop->epoll_fd < 0) {
        return tc_error_set(err, errno, "cannot make an epoll descriptor: %s", strerror(errno));
    }
    SLIST_INIT(&loop->kinds);
    loop->now_ns = now_ns();
    return 0;
}

void tc_loop_close(struct tc_loop *loop)
{
    if (loop != NULL && loop->epoll_fd >= 0) {
        (void)close(loop->epoll_fd);
        loop->epoll_fd = -1;
    }
}

static int control(struct tc_loop *loop, int operation, int fd, uint32_t events,
                   struct tc_watch *watch)
{
    struct epoll_event event = {.events = events, .data.ptr = watch};
    return epoll_ctl(loop->epoll_fd, operation, fd, &event) == 0 ? 0 : -errno;
}

int tc_loop_watch(struct tc_loop *loop, int fd, uint32_t events, struct tc_watch *watch)
{
    return control(loop, EPOLL_CTL_ADD, fd, events, watch);
}

int tc_loop_rewatch(struct tc_loop *loop, int fd, uint32_t events, struct tc_watch *watch)
{
    return control(loop, EPOLL_CTL_MOD, fd, events, watch);
}

void tc_loop_add_deadlines(struct tc_loop *loop, struct tc_deadlines *kind, uint64_t timeout_ns,
                           void (*expired)(struct tc_deadline *deadline))
{
    TAILQ_INIT(&kind->queue);
    kind->timeout_ns = timeout_ns;
    kind->expired = expired;
    SLIST_INSERT_HEAD(&loop->kinds, kind, link);
}

void tc_deadline_clear(struct tc_deadline *deadline)
{
    if (deadline->list != NULL) {
        TAILQ_REMOVE(&deadline->list->queue, deadline, link);
        deadline->list = NULL;
    }
}

void tc_deadline_set(struct tc_loop *loop, struct tc_deadlines *kind, struct tc_deadline *deadline)
{
    tc_deadline_clear(deadline);
    deadline->at_ns = loop->now_ns + kind->timeout_ns;
    deadline->list = kind;
    TAILQ_INSERT_TAIL(&kind->queue, deadline, link);
}

/* Rounded up, so that the loop does not wake just before a deadline, over and over. */
static int wait_ms(const struct tc_loop *loop, int timeout_ms)
{
    const struct tc_deadlines *kind = NULL;
    int64_t least = timeout_ms < 0 ? INT_MAX : timeout_ms;
    SLIST_FOREACH(kind, &loop->kinds, link)
    {
        const struct tc_deadline *first = TAILQ_FIRST(&kind->queue);
        if (first != NULL) {
            int64_t left_ns = (int64_t)(first->at_ns - loop->now_ns);
            int64_t left_ms = left_ns <= 0 ? 0 : (left_ns + 999999) / 1000000;
            least = left_ms < least ? left_ms : least;
        }
    }
    return least == INT_MAX ? -1 : (int)least;
}

/* A kind with timeout 0 means "again, but after the others": what its callbacks set anew waits for
 * the next run, so that one of them cannot hold the loop. */
static void expire(struct tc_loop *loop)
{
    struct tc_deadlines *kind = NULL;
    SLIST_FOREACH(kind, &loop->kinds, link)
    {
        struct tc_deadline *first = NULL;
        size_t count = 0;
        TAILQ_FOREACH(first, &kind->queue, link)
        {
            if (first->at_ns > loop->now_ns) {
                break;
            }
            count++;
        }
        for (; count > 0 && (first = TAILQ_FIRST(&kind->queue)) != NULL &&
               first->at_ns <= loop->now_ns;
             count--) {
            tc_deadline_clear(first);
            kind->expired(first);
        }
    }
}

int tc_loop_run(struct tc_loop *loop, int timeout_ms)
{
    struct epoll_event events[BATCH];
    int count = epoll_wait(loop->epoll_fd, events, BATCH, wait_ms(loop, timeout_ms));
    int code = errno;
    loop->now_ns = now_ns();
    if (count < 0 && code != EINTR) {
        return -code;
    }
    for (int i = 0; i < count; i++) {
        struct tc_watch *watch = events[i].data.ptr;
        watch->ready(watch, events[i].events);
    }
    expire(loop);
    return 0;
}
