/* Who can reach an address. */
#ifndef TC_SERVER_EXPOSURE_H
#define TC_SERVER_EXPOSURE_H

#include <stdbool.h>
#include <sys/socket.h>

/* True for loopback addresses, and for every address within a network namespace that is not the
 * system's own (where that can be told: /proc/1/ns/net is readable to root). */
bool tc_address_is_private(const struct sockaddr_storage *address);

#endif
