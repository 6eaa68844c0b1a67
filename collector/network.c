#include "collector/network.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <linux/if.h>
#include <netlink/netlink.h>
#include <netlink/route/addr.h>
#include <netlink/route/link.h>
#include <netlink/route/link/veth.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "workloads/common/options.h"

#define VETH_MTU 1500
/* QEMU's user-mode networking: the guest's network card, and its addresses there. */
#define USER_MTU    1500
#define USER_GUEST  "10.0.2.15"
#define USER_HOST   "10.0.2.2"
#define SERVER_VETH "server0"
#define LOAD_VETH   "load0"
#define PREFIX_BITS 24

void tc_network_mask(const struct tc_cpus *cpus, char *text, size_t size)
{
    uint32_t words[TC_CPUS_MAX / 32] = {0};
    int top = 0;
    for (size_t i = 0; i < cpus->count; i++) {
        int word = cpus->ids[i] / 32;
        words[word] |= UINT32_C(1) << (cpus->ids[i] % 32);
        top = word > top ? word : top;
    }
    size_t used = 0;
    for (int word = top; word >= 0 && used < size; word--) {
        int wrote = snprintf(text + used, size - used, word == top ? "%x" : ",%08x", words[word]);
        used += wrote > 0 ? (size_t)wrote : 0;
    }
}

static int enter(int namespace, struct tc_error *err)
{
    return setns(namespace, CLONE_NEWNET) == 0
               ? 0
               : tc_error_set(err, errno, "entering a network namespace: %s", strerror(errno));
}

/* Makes a new namespace, leaves the process in it and gives its fd. */
static int make_namespace(int *fd, struct tc_error *err)
{
    if (unshare(CLONE_NEWNET) != 0) {
        int code = errno;
        return tc_error_set(err, code,
                            "--network veth: cannot make a network namespace: %s; run as root, or "
                            "use --network loopback (the server's counts then hold part of the "
                            "load's TCP work)",
                            strerror(code));
    }
    *fd = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    return *fd >= 0 ? 0 : tc_error_set(err, errno, "/proc/self/ns/net: %s", strerror(errno));
}

static int netlink_failed(int code, const char *what, struct tc_error *err)
{
    return tc_error_set(err, EIO, "network: %s: %s", what, nl_geterror(code));
}

static int open_netlink(struct nl_sock **sock, struct tc_error *err)
{
    *sock = nl_socket_alloc();
    if (*sock == NULL) {
        return tc_error_set(err, ENOMEM, "network: out of memory");
    }
    int rc = nl_connect(*sock, NETLINK_ROUTE);
    return rc == 0 ? 0 : netlink_failed(rc, "netlink socket", err);
}

/* In the server's namespace: a pair with one end here and the other in the load's. */
static int make_pair(int load_namespace, struct tc_error *err)
{
    struct nl_sock *sock = NULL;
    struct rtnl_link *link = NULL;
    int rc = open_netlink(&sock, err);
    if (rc != 0) {
        goto done;
    }
    link = rtnl_link_veth_alloc();
    if (link == NULL) {
        rc = tc_error_set(err, ENOMEM, "network: out of memory");
        goto done;
    }
    struct rtnl_link *peer = rtnl_link_veth_get_peer(link);
    rtnl_link_set_name(link, SERVER_VETH);
    rtnl_link_set_mtu(link, VETH_MTU);
    rtnl_link_set_name(peer, LOAD_VETH);
    rtnl_link_set_mtu(peer, VETH_MTU);
    rtnl_link_set_ns_fd(peer, load_namespace);
    rc = rtnl_link_add(sock, link, NLM_F_CREATE | NLM_F_EXCL);
    rtnl_link_put(peer);
    if (rc != 0) {
        rc = netlink_failed(rc, "making the veth pair (is the kernel's veth there?)", err);
    }
done:
    rtnl_link_put(link);
    nl_socket_free(sock);
    return rc;
}

static int bring_up(struct nl_sock *sock, const char *name, int *index, struct tc_error *err)
{
    struct rtnl_link *link = NULL;
    struct rtnl_link *change = rtnl_link_alloc();
    if (change == NULL) {
        return tc_error_set(err, ENOMEM, "network: out of memory");
    }
    int rc = rtnl_link_get_kernel(sock, 0, name, &link);
    if (rc == 0) {
        *index = rtnl_link_get_ifindex(link);
        rtnl_link_set_flags(change, IFF_UP);
        rc = rtnl_link_change(sock, link, change, 0);
    }
    rtnl_link_put(link);
    rtnl_link_put(change);
    return rc == 0 ? 0 : netlink_failed(rc, name, err);
}

/* In the namespace: loopback and the veth end up, with its address. */
static int configure(const char *name, const char *address, struct tc_error *err)
{
    struct nl_sock *sock = NULL;
    struct rtnl_addr *addr = NULL;
    struct nl_addr *local = NULL;
    int index = 0;
    int rc = open_netlink(&sock, err);
    if (rc != 0 || (rc = bring_up(sock, "lo", &index, err)) != 0 ||
        (rc = bring_up(sock, name, &index, err)) != 0) {
        goto done;
    }
    addr = rtnl_addr_alloc();
    if (addr == NULL || nl_addr_parse(address, AF_INET, &local) != 0) {
        rc = tc_error_set(err, EINVAL, "'%s' is not an IPv4 address, as 198.18.0.1", address);
        goto done;
    }
    nl_addr_set_prefixlen(local, PREFIX_BITS);
    rtnl_addr_set_ifindex(addr, index);
    rc = rtnl_addr_set_local(addr, local);
    if (rc == 0) {
        rc = rtnl_addr_add(sock, addr, 0);
    }
    if (rc != 0) {
        rc = netlink_failed(rc, address, err);
    }
done:
    nl_addr_put(local);
    rtnl_addr_put(addr);
    nl_socket_free(sock);
    return rc;
}

static int write_text(const char *path, const char *text, struct tc_error *err)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    ssize_t wrote = fd < 0 ? -1 : write(fd, text, strlen(text));
    int code = errno;
    if (fd >= 0) {
        (void)close(fd);
    }
    return wrote >= 0 ? 0 : tc_error_set(err, code, "%s: %s", path, strerror(code));
}

/* In the namespace. Connections of seconds ago must not use up the ports: each transaction is a
 * connection. */
static int set_ports(struct tc_error *err)
{
    int rc = write_text("/proc/sys/net/ipv4/tcp_tw_reuse", "1", err);
    return rc != 0 ? rc : write_text("/proc/sys/net/ipv4/ip_local_port_range", "1024 65535", err);
}

/* In a process of its own, in the namespace: sysfs shows the namespace of whoever mounts it, so it
 * is mounted where nobody else sees it. */
static int steer(const char *name, const char *mask, struct tc_error *err)
{
    char pattern[128];
    glob_t queues = {0};
    if (unshare(CLONE_NEWNS) != 0 || mount("", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("sysfs", "/sys", "sysfs", 0, NULL) != 0) {
        return tc_error_set(err, errno, "network: mounting a private /sys: %s", strerror(errno));
    }
    (void)snprintf(pattern, sizeof(pattern), "/sys/class/net/%s/queues/rx-*/rps_cpus", name);
    if (glob(pattern, 0, NULL, &queues) != 0) {
        return tc_error_set(err, ENOTSUP,
                            "network: %s is not there: the kernel has no receive "
                            "packet steering (CONFIG_RPS)",
                            pattern);
    }
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < queues.gl_pathc; i++) {
        rc = write_text(queues.gl_pathv[i], mask, err);
    }
    globfree(&queues);
    return rc;
}

/* Runs steer() in a child, whose message comes back through a pipe. */
static int steer_apart(const char *name, const char *mask, struct tc_error *err)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) {
        return tc_error_set(err, errno, "network: pipe: %s", strerror(errno));
    }
    pid_t child = fork();
    if (child == 0) {
        struct tc_error failure = {""};
        int rc = steer(name, mask, &failure);
        if (rc != 0 && write(ends[1], failure.message, sizeof(failure.message)) < 0) {
            _exit(255);
        }
        _exit(rc == 0 ? 0 : -rc);
    }
    (void)close(ends[1]);
    struct tc_error failure = {"network: steering failed"};
    int status = 0;
    if (child < 0 || read(ends[0], failure.message, sizeof(failure.message)) < 0 ||
        waitpid(child, &status, 0) < 0) {
        status = -1;
    }
    (void)close(ends[0]);
    if (status == 0) {
        return 0;
    }
    failure.message[sizeof(failure.message) - 1] = '\0';
    return tc_error_set(err, WIFEXITED(status) ? WEXITSTATUS(status) : EIO, "%s", failure.message);
}

static int open_veth(struct tc_network *network, struct tc_error *err)
{
    int rc = make_namespace(&network->server, err);
    if (rc != 0 || (rc = make_namespace(&network->load, err)) != 0 ||
        (rc = enter(network->server, err)) != 0 || (rc = make_pair(network->load, err)) != 0 ||
        (rc = configure(SERVER_VETH, network->server_address, err)) != 0 ||
        (rc = set_ports(err)) != 0 ||
        (rc = steer_apart(SERVER_VETH, network->server_rps, err)) != 0 ||
        (rc = enter(network->load, err)) != 0 ||
        (rc = configure(LOAD_VETH, network->load_address, err)) != 0 ||
        (rc = set_ports(err)) != 0) {
        return rc;
    }
    return steer_apart(LOAD_VETH, network->load_rps, err);
}

static int loopback_mtu(struct tc_error *err)
{
    int mtu = 0;
    FILE *file = fopen("/sys/class/net/lo/mtu", "re");
    if (file == NULL || fscanf(file, "%d", &mtu) != 1) {
        mtu = tc_error_set(err, EIO, "/sys/class/net/lo/mtu: cannot be read");
    }
    if (file != NULL) {
        (void)fclose(file);
    }
    return mtu;
}

const char *tc_network_name(enum tc_network_kind kind)
{
    static const char *const names[] = {"loopback", "veth", "user"};
    return names[kind];
}

int tc_network_open(struct tc_network *network, enum tc_network_kind kind,
                    const char *server_address, const char *load_address,
                    const struct tc_cpus *server_cpus, const struct tc_cpus *load_cpus,
                    struct tc_error *err)
{
    *network = (struct tc_network){.kind = kind, .home = -1, .server = -1, .load = -1};
    if (kind == TC_NETWORK_USER) {
        network->mtu = USER_MTU;
        (void)snprintf(network->server_address, sizeof(network->server_address), USER_GUEST);
        (void)snprintf(network->load_address, sizeof(network->load_address), USER_HOST);
        return 0;
    }
    if (kind == TC_NETWORK_LOOPBACK) {
        network->mtu = loopback_mtu(err);
        network->server_interface = "lo";
        (void)snprintf(network->server_address, sizeof(network->server_address), "127.0.0.1");
        (void)snprintf(network->load_address, sizeof(network->load_address), "127.0.0.1");
        return network->mtu < 0 ? network->mtu : 0;
    }
    network->mtu = VETH_MTU;
    network->server_interface = SERVER_VETH;
    (void)snprintf(network->server_address, sizeof(network->server_address), "%s", server_address);
    (void)snprintf(network->load_address, sizeof(network->load_address), "%s", load_address);
    tc_network_mask(server_cpus, network->server_rps, sizeof(network->server_rps));
    tc_network_mask(load_cpus, network->load_rps, sizeof(network->load_rps));
    network->home = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    if (network->home < 0) {
        return tc_error_set(err, errno, "/proc/self/ns/net: %s", strerror(errno));
    }
    int rc = open_veth(network, err);
    int back = enter(network->home, rc == 0 ? err : NULL);
    return rc != 0 ? rc : back;
}

static int connect_within(int sock, const struct sockaddr *address, socklen_t length,
                          int timeout_ms)
{
    if (connect(sock, address, length) == 0) {
        return 0;
    }
    if (errno != EINPROGRESS) {
        return -errno;
    }
    struct pollfd writable = {.fd = sock, .events = POLLOUT};
    int code = 0;
    socklen_t code_length = sizeof(code);
    if (poll(&writable, 1, timeout_ms) != 1) {
        return -ETIMEDOUT;
    }
    return getsockopt(sock, SOL_SOCKET, SO_ERROR, &code, &code_length) != 0 ? -errno : -code;
}

int tc_network_try(const struct tc_network *network, const char *target, int timeout_ms,
                   struct tc_error *err)
{
    struct sockaddr_storage address;
    socklen_t length;
    int rc = tc_parse_address(target, &address, &length, err);
    if (rc != 0 || (network->load >= 0 && (rc = enter(network->load, err)) != 0)) {
        return rc;
    }
    /* A socket stays in the namespace in which it was made. */
    int sock = socket(address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    int code = errno;
    if (network->load >= 0 && (rc = enter(network->home, err)) != 0) {
        (void)close(sock);
        return rc;
    }
    if (sock < 0) {
        return tc_error_set(err, code, "socket: %s", strerror(code));
    }
    rc = connect_within(sock, (const struct sockaddr *)&address, length, timeout_ms);
    (void)close(sock);
    return rc == 0 ? 0 : tc_error_set(err, -rc, "connecting to %s: %s", target, strerror(-rc));
}

static void close_fd(int *fd)
{
    if (*fd > 0) {
        (void)close(*fd);
    }
    *fd = -1;
}

void tc_network_close(struct tc_network *network)
{
    close_fd(&network->home);
    close_fd(&network->server);
    close_fd(&network->load);
}
