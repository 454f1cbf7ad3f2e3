/* rpc/gateway/auth.h - who is calling.
 *
 * Purpose    The API keys file (lines `name sha256:HEX`), and the identity of a client that the coordinator counts by: the
 *            key's name, else whatever bearer was sent, else the peer's address, each as 32 hex digits of its SHA-256
 *            (an address stays as it is). Keys themselves are never kept.
 * Ownership  auth_create/auth_destroy.
 * Threading  auth_check and auth_reload from any thread (a lock inside guards the table). api_keys_parse is pure.
 * Errors     STATUS_CONFIG with the line's number. A reload that fails keeps the old keys.
 */
#ifndef SLUICE_RPC_GATEWAY_AUTH_H
#define SLUICE_RPC_GATEWAY_AUTH_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/error.h"

enum { API_KEY_NAME_BYTES = 65, API_KEYS_MAX = 65536, CLIENT_BYTES = 64 };

struct api_key {
    char name[API_KEY_NAME_BYTES];
    uint8_t sha256[32];
};

struct api_keys {
    struct api_key *key;
    size_t n;
};

/* Text of a keys file. On success *out is freed with api_keys_fini. */
enum status api_keys_parse(const char *text, size_t len, struct api_keys *out, struct error *err);
void api_keys_fini(struct api_keys *k);

struct auth;

/* path NULL: no keys, everybody may call. */
enum status auth_create(const char *path, struct auth **out, struct error *err);
void auth_destroy(struct auth *a);
enum status auth_reload(struct auth *a, struct error *err);
/* authorization: the header's value or NULL; peer: an address. Writes the client's identity. STATUS_UNAUTHENTICATED. */
enum status auth_check(struct auth *a, const char *authorization, const char *peer, char client[CLIENT_BYTES],
                       struct error *err);

#endif
