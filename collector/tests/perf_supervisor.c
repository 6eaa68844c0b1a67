/* Runs a program whose perf_event_open is answered otherwise, by the kernel, for hardware events:
 *
 *     perf_supervisor ERRNO -- PROGRAM ARGS...     refused with that errno (a number)
 *     perf_supervisor silent -- PROGRAM ARGS...    opened, but counting nothing
 *
 * What a user meets is met so where this machine has no PMU or a working one: a seccomp filter asks
 * this process about each call (seccomp_unotify(2)). A silent event is an open one of the kernel's,
 * its dummy, which is scheduled and counts nothing, as some virtual machines' PMUs do. Exits as the
 * program does, 125 where it cannot supervise. */
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/perf_event.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define CANNOT 125
#define SILENT 0

static _Noreturn void die(const char *what)
{
    (void)fprintf(stderr, "perf_supervisor: %s: %s\n", what, strerror(errno));
    _exit(CANNOT);
}

static int install_filter(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_perf_event_open, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof(code) / sizeof(code[0]), .filter = code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) {
        die("no_new_privs");
    }
    long fd =
        syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program);
    if (fd < 0) {
        die("seccomp");
    }
    return (int)fd;
}

static void send_fd(int channel, int fd)
{
    char space[CMSG_SPACE(sizeof(int))] = {0};
    char byte = 0;
    struct iovec data = {&byte, 1};
    struct msghdr message = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof(space)};
    struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(rights), &fd, sizeof(fd));
    if (sendmsg(channel, &message, 0) != 1) {
        die("passing the listener on");
    }
}

static int receive_fd(int channel)
{
    char space[CMSG_SPACE(sizeof(int))];
    char byte;
    int fd;
    struct iovec data = {&byte, 1};
    struct msghdr message = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof(space)};
    if (recvmsg(channel, &message, MSG_CMSG_CLOEXEC) != 1 || CMSG_FIRSTHDR(&message) == NULL) {
        die("receiving the listener");
    }
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(fd));
    return fd;
}

static bool read_attr(const struct seccomp_notif *call, struct perf_event_attr *attr)
{
    memset(attr, 0, sizeof(*attr));
    struct iovec here = {attr, sizeof(*attr)};
    void *address; /* in the program's memory */
    memcpy(&address, &call->data.args[0], sizeof(address));
    struct iovec there = {address, sizeof(*attr)};
    return process_vm_readv((pid_t)call->pid, &here, 1, &there, 1, 0) == (ssize_t)sizeof(*attr);
}

/* The program's file descriptor, as one of ours. */
static int borrow(pid_t pid, int fd)
{
    int process = (int)syscall(SYS_pidfd_open, pid, 0);
    int ours = process < 0 ? -1 : (int)syscall(SYS_pidfd_getfd, process, fd, 0);
    if (process >= 0) {
        (void)close(process);
    }
    return ours;
}

/* Opens the kernel's dummy in the event's place and gives it to the program. */
static int give_silent(int listener, const struct seccomp_notif *call, struct perf_event_attr *attr)
{
    pid_t pid = (pid_t)call->data.args[1];
    int group = (int)call->data.args[3];
    int leader = group < 0 ? -1 : borrow((pid_t)call->pid, group);
    if (group >= 0 && leader < 0) {
        return -errno;
    }
    attr->type = PERF_TYPE_SOFTWARE;
    attr->config = PERF_COUNT_SW_DUMMY;
    long fd = syscall(SYS_perf_event_open, attr, pid == 0 ? (pid_t)call->pid : pid,
                      (int)call->data.args[2], leader, PERF_FLAG_FD_CLOEXEC);
    int rc = fd < 0 ? -errno : 0;
    struct seccomp_notif_addfd gift = {.id = call->id,
                                       .flags = SECCOMP_ADDFD_FLAG_SEND,
                                       .srcfd = (__u32)fd,
                                       .newfd_flags = O_CLOEXEC};
    if (rc == 0 && ioctl(listener, SECCOMP_IOCTL_NOTIF_ADDFD, &gift) < 0) {
        rc = -errno;
    }
    if (fd >= 0) {
        (void)close((int)fd);
    }
    if (leader >= 0) {
        (void)close(leader);
    }
    return rc;
}

static void answer(int listener, int code)
{
    struct seccomp_notif call = {0};
    struct seccomp_notif_resp reply = {0};
    struct perf_event_attr attr;
    if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &call) != 0) {
        return; /* the caller is gone */
    }
    reply.id = call.id;
    bool hardware = read_attr(&call, &attr) && attr.type != PERF_TYPE_SOFTWARE;
    if (!hardware) {
        reply.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
    } else if (code == SILENT) {
        int rc = give_silent(listener, &call, &attr);
        if (rc == 0) {
            return; /* with the gift the call has ended */
        }
        reply.error = rc;
    } else {
        reply.error = -code;
    }
    (void)ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &reply);
}

static int supervise(int listener, int code, pid_t program)
{
    int status;
    struct pollfd asked = {.fd = listener, .events = POLLIN};
    while (waitpid(program, &status, WNOHANG) == 0) {
        if (poll(&asked, 1, 20) > 0 && (asked.revents & POLLIN) != 0) {
            answer(listener, code);
        }
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int main(int argc, char **argv)
{
    int channel[2];
    if (argc < 4 || strcmp(argv[2], "--") != 0) {
        (void)fprintf(stderr, "usage: perf_supervisor ERRNO|silent -- PROGRAM ARGS...\n");
        return CANNOT;
    }
    int code = strcmp(argv[1], "silent") == 0 ? SILENT : atoi(argv[1]);
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, channel) != 0) {
        die("socketpair");
    }
    pid_t program = fork();
    if (program == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
        int listener = install_filter();
        send_fd(channel[1], listener);
        (void)close(listener);
        (void)execvp(argv[3], &argv[3]);
        die(argv[3]);
    }
    if (program < 0) {
        die("fork");
    }
    (void)close(channel[1]);
    return supervise(receive_fd(channel[0]), code, program);
}
