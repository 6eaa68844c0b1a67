#include "collector/keeper.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "collector/procfs.h"

/* What goes over the socket. From the collector: GO, STOP (value: grace in ms). From the keeper:
 * STARTED (value: pid), ENDED (text: why; then the tail). */
enum { MESSAGE_STARTED, MESSAGE_GO, MESSAGE_STOP, MESSAGE_ENDED };

struct message {
    int32_t kind;
    int32_t value;
    char why[sizeof(((struct tc_keeper *)0)->why)];
    char tail[TC_KEEPER_TAIL + 1];
};

/* The keeper's own state, in its own process. */
struct keeping {
    const struct tc_keeper_spec *spec;
    int socket;
    int signals;
    int output;
    int go; /* write end: a byte lets the command start; closed without: it ends */
    pid_t command;
    bool command_alive;
    bool failed;
    bool ended_sent;
    int64_t kill_at_ms; /* 0: not stopping */
    char why[sizeof(((struct tc_keeper *)0)->why)];
    char tail[TC_KEEPER_TAIL * 2];
    size_t tail_length;
};

static int64_t now_ms(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Signals this process's children. Grandchildren become children when their parents die. */
static void signal_children(int signal_number)
{
    DIR *dir = opendir("/proc");
    if (dir == NULL) {
        return;
    }
    for (struct dirent *entry = readdir(dir); entry != NULL; entry = readdir(dir)) {
        pid_t pid = (pid_t)strtol(entry->d_name, NULL, 10);
        char path[sizeof(entry->d_name) + 16];
        char text[1024];
        (void)snprintf(path, sizeof(path), "/proc/%s/stat", entry->d_name);
        int fd = pid > 0 ? open(path, O_RDONLY | O_CLOEXEC) : -1;
        if (fd < 0) {
            continue;
        }
        ssize_t length = read(fd, text, sizeof(text) - 1);
        (void)close(fd);
        text[length < 0 ? 0 : length] = '\0';
        pid_t parent;
        uint64_t pages;
        if (tc_procfs_pid_stat(text, &parent, &pages, NULL) == 0 && parent == getpid()) {
            (void)kill(pid, signal_number);
        }
    }
    (void)closedir(dir);
}

static void describe_status(struct keeping *keeping, int status)
{
    if (WIFSIGNALED(status)) {
        (void)snprintf(keeping->why, sizeof(keeping->why), "was killed by signal %d (%s)",
                       WTERMSIG(status), strsignal(WTERMSIG(status)));
    } else {
        (void)snprintf(keeping->why, sizeof(keeping->why), "exited with status %d",
                       WEXITSTATUS(status));
    }
}

/* Reaps what has died. True while children are left. */
static bool reap(struct keeping *keeping)
{
    int status;
    pid_t pid;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        if (pid == keeping->command) {
            keeping->command_alive = false;
            keeping->failed = status != 0;
            if (keeping->why[0] == '\0') {
                describe_status(keeping, status);
            }
        }
    }
    return pid == 0;
}

static void kill_all(void)
{
    do {
        signal_children(SIGKILL);
    } while (waitpid(-1, NULL, 0) > 0 || errno == EINTR);
}

/* Keeps the end of the output. */
static void drain(struct keeping *keeping)
{
    for (;;) {
        if (keeping->tail_length >= TC_KEEPER_TAIL) {
            size_t surplus = keeping->tail_length - TC_KEEPER_TAIL;
            memmove(keeping->tail, keeping->tail + surplus, TC_KEEPER_TAIL);
            keeping->tail_length = TC_KEEPER_TAIL;
        }
        ssize_t got = read(keeping->output, keeping->tail + keeping->tail_length,
                           sizeof(keeping->tail) - keeping->tail_length);
        if (got <= 0) {
            return;
        }
        keeping->tail_length += (size_t)got;
    }
}

static void send_ended(struct keeping *keeping)
{
    struct message message = {.kind = MESSAGE_ENDED};
    drain(keeping);
    size_t length = keeping->tail_length < TC_KEEPER_TAIL ? keeping->tail_length : TC_KEEPER_TAIL;
    memcpy(message.tail, keeping->tail + keeping->tail_length - length, length);
    (void)snprintf(message.why, sizeof(message.why), "%s", keeping->why);
    /* Where nobody listens any more there is nobody to tell. */
    (void)!send(keeping->socket, &message, sizeof(message), MSG_NOSIGNAL);
    keeping->ended_sent = true;
}

/* In the process that becomes the command. Does not return. */
static void become_command(const struct tc_keeper_spec *spec, pid_t keeper, int go, int why)
{
    char byte;
    /* Should somebody kill the keeper itself. */
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != keeper) {
        _exit(0);
    }
    if (read(go, &byte, 1) != 1) {
        _exit(0); /* the collector changed its mind or died */
    }
    struct tc_error err = {""};
    sigset_t none;
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    /* Ignored signals stay ignored through exec. */
    (void)signal(SIGPIPE, SIG_DFL);
    (void)signal(SIGXFSZ, SIG_DFL);
    if (tc_placement_apply(spec->cpus, spec->numa, &err) == 0 &&
        (spec->page < 0 || fcntl(spec->page, F_SETFD, 0) == 0)) {
        (void)execvp(spec->argv[0], spec->argv);
        (void)tc_error_set(&err, errno, "cannot be executed: %s: %s", spec->argv[0],
                           strerror(errno));
    }
    (void)!write(why, err.message, strlen(err.message));
    _exit(127);
}

/* Closes every fd but those, so that no end of another keeper's socket lives on here. */
static void close_others(const int *kept, size_t count)
{
    unsigned from = 3;
    for (;;) {
        unsigned next = ~0U;
        for (size_t i = 0; i < count; i++) {
            if (kept[i] >= (int)from && (unsigned)kept[i] < next) {
                next = (unsigned)kept[i];
            }
        }
        if (next == ~0U) {
            (void)close_range(from, ~0U, 0);
            return;
        }
        if (next > from) {
            (void)close_range(from, next - 1, 0);
        }
        from = next + 1;
    }
}

/* Forks the process that waits to become the command. Returns the fd from which a failure to
 * execute can be read, -errno else. */
static int fork_command(struct keeping *keeping)
{
    int go[2];
    int why[2];
    int output[2];
    if (pipe2(go, O_CLOEXEC) != 0 || pipe2(why, O_CLOEXEC) != 0 || pipe2(output, O_CLOEXEC) != 0) {
        return -errno;
    }
    pid_t keeper = getpid();
    keeping->command = fork();
    if (keeping->command < 0) {
        return -errno;
    }
    if (keeping->command == 0) {
        int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
        (void)close(go[1]);
        if (null < 0 || dup2(null, 0) < 0 || dup2(output[1], 1) < 0 || dup2(output[1], 2) < 0) {
            _exit(127);
        }
        become_command(keeping->spec, keeper, go[0], why[1]);
    }
    (void)close(go[0]);
    (void)close(why[1]);
    (void)close(output[1]);
    keeping->go = go[1];
    keeping->output = output[0];
    keeping->command_alive = true;
    (void)fcntl(output[0], F_SETFL, O_NONBLOCK);
    return why[0];
}

/* Lets the command start and learns whether it did: the pipe closes when exec succeeds. */
static void let_go(struct keeping *keeping, int why)
{
    (void)!write(keeping->go, "", 1);
    ssize_t length = read(why, keeping->why, sizeof(keeping->why) - 1);
    keeping->why[length > 0 ? length : 0] = '\0';
}

static void begin_stop(struct keeping *keeping, int grace_ms)
{
    keeping->kill_at_ms = now_ms() + grace_ms;
    if (keeping->command_alive) {
        (void)kill(keeping->command, SIGTERM);
        (void)kill(keeping->command, SIGCONT); /* a stopped process takes no SIGTERM */
    } else {
        signal_children(SIGTERM);
        signal_children(SIGCONT);
    }
}

/* False when the collector is gone. */
static bool take_message(struct keeping *keeping, int why)
{
    struct message message;
    ssize_t got = recv(keeping->socket, &message, sizeof(message), 0);
    if (got < (ssize_t)sizeof(message)) {
        return got < 0 && errno == EINTR;
    }
    if (message.kind == MESSAGE_GO) {
        let_go(keeping, why);
    } else if (message.kind == MESSAGE_STOP) {
        begin_stop(keeping, message.value);
    }
    return true;
}

/* Serves until the command ended, the collector said stop and it is done, or the collector died. */
static void serve(struct keeping *keeping, int why)
{
    for (;;) {
        struct pollfd fds[] = {{.fd = keeping->socket, .events = POLLIN},
                               {.fd = keeping->signals, .events = POLLIN},
                               {.fd = keeping->output, .events = POLLIN}};
        int64_t left = keeping->kill_at_ms - now_ms();
        int ready = poll(fds, 3, keeping->kill_at_ms == 0 ? -1 : left > 0 ? (int)left : 0);
        if (ready < 0 && errno != EINTR) {
            return;
        }
        if (fds[1].revents != 0) {
            struct signalfd_siginfo info;
            if (read(keeping->signals, &info, sizeof(info)) == (ssize_t)sizeof(info) &&
                info.ssi_signo != SIGCHLD) {
                return; /* somebody wants the keeper to end: not without the command */
            }
        }
        if (fds[2].revents != 0) {
            drain(keeping);
            if ((fds[2].revents & POLLIN) == 0) {
                (void)close(keeping->output); /* all writers are gone */
                keeping->output = -1;
            }
        }
        bool children = reap(keeping);
        if (!children || (!keeping->command_alive && keeping->failed) ||
            (keeping->kill_at_ms != 0 && now_ms() >= keeping->kill_at_ms)) {
            return;
        }
        if (fds[0].revents != 0 && !take_message(keeping, why)) {
            return;
        }
    }
}

/* The keeper's process. Does not return. */
static void keep(const struct tc_keeper_spec *spec, int sock)
{
    struct keeping keeping = {.spec = spec, .socket = sock, .output = -1};
    struct message started = {.kind = MESSAGE_STARTED};
    const int kept[] = {sock, spec->page};
    sigset_t set;
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGCHLD);
    (void)sigaddset(&set, SIGTERM);
    (void)sigaddset(&set, SIGINT);
    (void)sigaddset(&set, SIGHUP);
    int rc = 0;
    /* A session of its own: the terminal's Ctrl-C is for the collector. */
    if (setsid() < 0 || prctl(PR_SET_CHILD_SUBREAPER, 1) != 0 ||
        sigprocmask(SIG_SETMASK, &set, NULL) != 0 ||
        (spec->network >= 0 && setns(spec->network, CLONE_NEWNET) != 0)) {
        rc = -errno;
    }
    close_others(kept, 2);
    keeping.signals = signalfd(-1, &set, SFD_CLOEXEC);
    int why = rc == 0 ? fork_command(&keeping) : rc;
    started.value = why < 0 ? why : keeping.command;
    if (send(sock, &started, sizeof(started), MSG_NOSIGNAL) < 0 || why < 0) {
        kill_all();
        _exit(1);
    }
    serve(&keeping, why);
    if (keeping.why[0] == '\0') {
        (void)snprintf(keeping.why, sizeof(keeping.why), "was stopped");
    }
    if (keeping.output < 0) {
        keeping.output = open("/dev/null", O_RDONLY | O_CLOEXEC);
    }
    send_ended(&keeping);
    kill_all();
    _exit(0);
}

int tc_keeper_start(struct tc_keeper *keeper, const struct tc_keeper_spec *spec,
                    struct tc_error *err)
{
    int ends[2];
    *keeper = (struct tc_keeper){.what = spec->what, .socket = -1};
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
        return tc_error_set(err, errno, "keeper of the %s: socketpair: %s", spec->what,
                            strerror(errno));
    }
    keeper->pid = fork();
    if (keeper->pid == 0) {
        keep(spec, ends[1]);
    }
    (void)close(ends[1]);
    keeper->socket = ends[0];
    struct message message = {.value = -EPIPE};
    ssize_t got = keeper->pid < 0 ? -1 : recv(ends[0], &message, sizeof(message), 0);
    if (got != (ssize_t)sizeof(message) || message.value < 0) {
        int code = keeper->pid < 0 || got < 0 ? errno : -message.value;
        tc_keeper_close(keeper);
        return tc_error_set(err, code, "keeper of the %s: %s", spec->what, strerror(code));
    }
    keeper->command = (pid_t)message.value;
    return 0;
}

static int tell(struct tc_keeper *keeper, int kind, int value)
{
    struct message message = {.kind = kind, .value = value};
    return send(keeper->socket, &message, sizeof(message), MSG_NOSIGNAL) < 0 ? -errno : 0;
}

int tc_keeper_release(struct tc_keeper *keeper, struct tc_error *err)
{
    int rc = tell(keeper, MESSAGE_GO, 0);
    return rc == 0 ? 0
                   : tc_error_set(err, -rc, "keeper of the %s: %s", keeper->what, strerror(-rc));
}

static void take_ended(struct tc_keeper *keeper, ssize_t got, const struct message *message)
{
    keeper->ended = true;
    if (got == (ssize_t)sizeof(*message)) {
        (void)snprintf(keeper->why, sizeof(keeper->why), "%s", message->why);
        memcpy(keeper->tail, message->tail, sizeof(keeper->tail));
    } else {
        (void)snprintf(keeper->why, sizeof(keeper->why), "was lost: its keeper is gone");
    }
}

int tc_keeper_check(struct tc_keeper *keeper, struct tc_error *err)
{
    struct message message;
    if (!keeper->ended) {
        ssize_t got = recv(keeper->socket, &message, sizeof(message), MSG_DONTWAIT);
        if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
            return 0;
        }
        take_ended(keeper, got, &message);
    }
    return tc_error_set(err, ESRCH, "the %s %s", keeper->what, keeper->why);
}

void tc_keeper_stop(struct tc_keeper *keeper, int grace_ms)
{
    if (keeper == NULL || keeper->pid <= 0) {
        return;
    }
    struct message message;
    /* Where telling fails the keeper is ending by itself. */
    if (!keeper->ended) {
        (void)tell(keeper, MESSAGE_STOP, grace_ms);
        ssize_t got;
        do {
            got = recv(keeper->socket, &message, sizeof(message), 0);
        } while (got < 0 && errno == EINTR);
        take_ended(keeper, got, &message);
    }
    (void)close(keeper->socket);
    keeper->socket = -1;
    while (waitpid(keeper->pid, NULL, 0) < 0 && errno == EINTR) {
    }
    keeper->pid = 0;
}

void tc_keeper_close(struct tc_keeper *keeper)
{
    if (keeper == NULL) {
        return;
    }
    tc_keeper_stop(keeper, 0);
    if (keeper->socket > 0) {
        (void)close(keeper->socket);
        keeper->socket = -1;
    }
}
