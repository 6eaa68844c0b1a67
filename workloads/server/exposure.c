#include "workloads/server/exposure.h"

#include <netinet/in.h>
#include <sys/stat.h>

static bool is_loopback(const struct sockaddr_storage *address)
{
    if (address->ss_family == AF_INET) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)address;
        return ntohl(in->sin_addr.s_addr) >> IN_CLASSA_NSHIFT == IN_LOOPBACKNET;
    }
    const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)address;
    return address->ss_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&in6->sin6_addr);
}

bool tc_address_is_private(const struct sockaddr_storage *address)
{
    struct stat own;
    struct stat systems;
    return is_loopback(address) ||
           (stat("/proc/self/ns/net", &own) == 0 && stat("/proc/1/ns/net", &systems) == 0 &&
            (own.st_ino != systems.st_ino || own.st_dev != systems.st_dev));
}
