/* The whole server: bodies, certificates and workers. */
#ifndef TC_SERVER_SERVER_H
#define TC_SERVER_SERVER_H

#include "workloads/common/profile.h"
#include "workloads/server/worker.h"

struct tc_server_options {
    struct sockaddr_storage address;
    socklen_t address_length;
    const struct tc_profile *profile; /* NULL: plain */
    const char *certificate_dir;      /* key.pem and cert.pem to use; NULL: make them */
    const int *cpus;
    size_t cpu_count;
    bool resumption;
    struct tc_limits limits;
};

struct tc_server {
    struct tc_worker *workers;
    size_t count;
    struct sockaddr_storage address; /* as bound */
    SSL_CTX *shared_ctx;
};

/* Binds, starts the workers and returns; they serve until tc_server_stop(). Options and bodies must
 * outlive the server. -errno; tc_server_close() in any case. */
TC_MUST_CHECK int tc_server_start(struct tc_server *server, const struct tc_server_options *options,
                                  const struct tc_bodies *bodies, struct tc_error *err);

/* Has the workers drain, waits for them and frees all. *cut: connections that the drain's timeout
 * cut short. 0, or what made a worker fail. */
TC_MUST_CHECK int tc_server_close(struct tc_server *server, uint64_t *cut, struct tc_error *err);

#endif
