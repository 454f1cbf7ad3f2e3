/* common/base/address.h - HOST:PORT text.
 *
 * Purpose    One parser for every address flag. HOST is a name, an IPv4 address or [IPv6]. Nothing is ignored: what
 *            does not belong to one of these forms is refused.
 * Threading  Pure; resolving may block.
 * Errors     STATUS_CONFIG with the text and what is allowed.
 */
#ifndef SLUICE_COMMON_BASE_ADDRESS_H
#define SLUICE_COMMON_BASE_ADDRESS_H

#include <stdint.h>
#include <sys/socket.h>

#include "common/base/error.h"

struct address {
    char host[256];
    uint16_t port; /* 0: any */
};

/* default_port < 0: the port must be there. `flag` names the parameter in the error. */
enum status address_parse(const char *text, int default_port, const char *flag, struct address *out, struct error *err);
/* HOST:PORT as address_parse reads it: IPv6 gets its brackets back. */
enum { ADDRESS_TEXT = 272 };
void address_print(const struct address *a, char out[ADDRESS_TEXT]);
enum status address_resolve(const struct address *a, struct sockaddr_storage *out, socklen_t *len, struct error *err);
int address_is_loopback(const struct address *a);

#endif
