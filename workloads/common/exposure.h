/* Who can reach an address. */
#ifndef TC_COMMON_EXPOSURE_H
#define TC_COMMON_EXPOSURE_H

#include <stdbool.h>
#include <sys/socket.h>

/* True for loopback addresses, and for those of 198.18.0.0/15, which is set apart for benchmarks
 * (RFC 2544), is not routed on the Internet, and is what a cell's own network uses. */
bool tc_address_is_private(const struct sockaddr_storage *address);

#endif
