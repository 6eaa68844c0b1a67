/* Where load and server meet: two anonymous network namespaces joined by a veth pair, loopback, or
 * a simulated machine's own network.
 *
 * The namespaces are held by file descriptors and by the processes in them only, so that they, and
 * the veth pair with them, vanish with their last user. */
#ifndef TC_COLLECTOR_NETWORK_H
#define TC_COLLECTOR_NETWORK_H

#include "collector/placement.h"
#include "workloads/common/error.h"

enum tc_network_kind {
    TC_NETWORK_LOOPBACK,
    TC_NETWORK_VETH,
    TC_NETWORK_USER /* a simulated machine's, which its host forwards connections to */
};

#define TC_NETWORK_MASK_MAX 300 /* hex digits and commas of TC_CPUS_MAX CPUs */

struct tc_network {
    enum tc_network_kind kind;
    int mtu;
    int home;   /* the collector's own namespace */
    int server; /* fds of the namespaces; -1 on loopback */
    int load;
    const char *server_interface; /* whose bytes are the server's */
    char server_address[64];
    char load_address[64];
    char server_rps[TC_NETWORK_MASK_MAX]; /* masks as written to sysfs; empty on loopback */
    char load_rps[TC_NETWORK_MASK_MAX];
};

/* Names as used in options and records. */
const char *tc_network_name(enum tc_network_kind kind);

/* A CPU mask as sysfs takes it: hexadecimal words of 32 bits, comma-separated, highest first. */
void tc_network_mask(const struct tc_cpus *cpus, char *text, size_t size);

/* Makes the network. Errors: -EPERM (veth without root; the message has the remedy), -EINVAL (an
 * address), errno of what the kernel refused. tc_network_close() in every case. */
TC_MUST_CHECK int tc_network_open(struct tc_network *network, enum tc_network_kind kind,
                                  const char *server_address, const char *load_address,
                                  const struct tc_cpus *server_cpus,
                                  const struct tc_cpus *load_cpus, struct tc_error *err);

/* Tries to connect from the load's side to "ADDRESS:PORT". Returns 0 when it was accepted;
 * -ECONNREFUSED, -ETIMEDOUT and the like while nobody listens; -EINVAL for a malformed address. */
TC_MUST_CHECK int tc_network_try(const struct tc_network *network, const char *target,
                                 int timeout_ms, struct tc_error *err);

/* Closes the fds; safe on a zeroed or half-made network. */
void tc_network_close(struct tc_network *network);

#endif
