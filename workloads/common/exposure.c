#include "workloads/common/exposure.h"

#include <netinet/in.h>

bool tc_address_is_private(const struct sockaddr_storage *address)
{
    if (address->ss_family == AF_INET) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)address;
        in_addr_t host = ntohl(in->sin_addr.s_addr);
        return host >> 24 == IN_LOOPBACKNET || host >> 17 == (198U << 24 | 18U << 16) >> 17;
    }
    const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)address;
    return address->ss_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&in6->sin6_addr);
}
