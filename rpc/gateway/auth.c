#include "rpc/gateway/auth.h"

#include <ctype.h>
#include <openssl/evp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/base/file.h"

enum { FILE_MAX_BYTES = 16 << 20, CLIENT_HASH_BYTES = 16 };

struct auth {
    char *path;
    pthread_mutex_t lock; /* guards keys */
    struct api_keys keys;
};

static void sha256(const void *data, size_t len, uint8_t out[32])
{
    unsigned n = 32;
    EVP_Digest(data, len, out, &n, EVP_sha256(), NULL);
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

static int read_hash(const char *text, size_t len, uint8_t out[32])
{
    static const char prefix[] = "sha256:";
    size_t skip = sizeof prefix - 1;
    if (len != skip + 64 || memcmp(text, prefix, skip))
        return 0;
    for (size_t i = 0; i < 32; i++) {
        int high = hex_digit(text[skip + 2 * i]), low = hex_digit(text[skip + 2 * i + 1]);
        if (high < 0 || low < 0)
            return 0;
        out[i] = (uint8_t)(high << 4 | low);
    }
    return 1;
}

static int is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

/* One line, without its end. Empty lines and comments give no key. */
static enum status read_line(const char *p, size_t len, int line, struct api_keys *k, struct error *err)
{
    while (len && is_blank(*p))
        p++, len--;
    while (len && is_blank(p[len - 1]))
        len--;
    if (len == 0 || *p == '#')
        return STATUS_OK;
    size_t name_len = 0, gap;
    while (name_len < len && isgraph((unsigned char)p[name_len]))
        name_len++;
    for (gap = name_len; gap < len && is_blank(p[gap]);)
        gap++;
    struct api_key *key = &k->key[k->n];
    *key = (struct api_key){0};
    if (name_len == 0 || name_len >= sizeof key->name || gap == name_len || !read_hash(p + gap, len - gap, key->sha256))
        return error_set(err, STATUS_CONFIG,
                         "line %d: a line is `name sha256:HEX` with 64 hex digits and a name of up to %d", line,
                         API_KEY_NAME_BYTES - 1);
    memcpy(key->name, p, name_len);
    k->n++;
    return STATUS_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct api_key *)a)->name, ((const struct api_key *)b)->name);
}

/* A name twice would give two people one identity; usually it is a slip. */
static enum status refuse_twins(const struct api_keys *k, struct error *err)
{
    qsort(k->key, k->n, sizeof k->key[0], by_name);
    for (size_t i = 1; i < k->n; i++)
        if (strcmp(k->key[i].name, k->key[i - 1].name) == 0)
            return error_set(err, STATUS_CONFIG, "the name '%s' is there twice", k->key[i].name);
    return STATUS_OK;
}

static size_t count_lines(const char *text, size_t len)
{
    size_t n = 1;
    for (size_t i = 0; i < len; i++)
        n += text[i] == '\n';
    return n;
}

enum status api_keys_parse(const char *text, size_t len, struct api_keys *out, struct error *err)
{
    size_t n_lines = count_lines(text, len);
    if (n_lines > API_KEYS_MAX)
        return error_set(err, STATUS_CONFIG, "more than %d lines", API_KEYS_MAX);
    struct api_keys k = {.key = calloc(n_lines, sizeof(struct api_key))};
    if (!k.key)
        return error_set(err, STATUS_OUT_OF_MEMORY, "no memory for the API keys");
    enum status s = STATUS_OK;
    for (int line = 1; s == STATUS_OK && len; line++) {
        const char *end = memchr(text, '\n', len);
        size_t line_len = end ? (size_t)(end - text) : len;
        s = read_line(text, line_len, line, &k, err);
        line_len += end != NULL;
        text += line_len;
        len -= line_len;
    }
    if (s == STATUS_OK && k.n == 0)
        s = error_set(err, STATUS_CONFIG, "there is no key in it, so nobody could call");
    if (s == STATUS_OK)
        s = refuse_twins(&k, err);
    if (s != STATUS_OK) {
        api_keys_fini(&k);
        return s;
    }
    *out = k;
    return STATUS_OK;
}

void api_keys_fini(struct api_keys *k)
{
    free(k->key);
    *k = (struct api_keys){0};
}

static enum status load(const char *path, struct api_keys *out, struct error *err)
{
    struct error why;
    char *text;
    size_t len;
    enum status s = file_read(path, FILE_MAX_BYTES, &text, &len, &why);
    if (s != STATUS_OK)
        return error_set(err, s, "--api-keys %.280s", why.message);
    s = api_keys_parse(text, len, out, &why);
    free(text);
    return s == STATUS_OK ? STATUS_OK : error_set(err, s, "--api-keys %.150s: %.150s", path, why.message);
}

enum status auth_create(const char *path, struct auth **out, struct error *err)
{
    struct auth *a = calloc(1, sizeof *a);
    if (!a || (path && !(a->path = strdup(path)))) {
        free(a);
        return error_set(err, STATUS_OUT_OF_MEMORY, "no memory for the API keys");
    }
    pthread_mutex_init(&a->lock, NULL);
    enum status s = path ? load(path, &a->keys, err) : STATUS_OK;
    if (s != STATUS_OK) {
        auth_destroy(a);
        return s;
    }
    *out = a;
    return STATUS_OK;
}

void auth_destroy(struct auth *a)
{
    api_keys_fini(&a->keys);
    pthread_mutex_destroy(&a->lock);
    free(a->path);
    free(a);
}

enum status auth_reload(struct auth *a, struct error *err)
{
    struct api_keys fresh;
    if (!a->path)
        return STATUS_OK;
    TRY(load(a->path, &fresh, err));
    pthread_mutex_lock(&a->lock);
    struct api_keys old = a->keys;
    a->keys = fresh;
    pthread_mutex_unlock(&a->lock);
    api_keys_fini(&old);
    return STATUS_OK;
}

static void identity(const char *text, size_t len, char client[CLIENT_BYTES])
{
    uint8_t hash[32];
    sha256(text, len, hash);
    for (int i = 0; i < CLIENT_HASH_BYTES; i++)
        snprintf(client + 2 * i, 3, "%02x", hash[i]);
}

/* The bearer of an Authorization header, or NULL. */
static const char *bearer(const char *authorization)
{
    if (!authorization || strncasecmp(authorization, "bearer ", 7))
        return NULL;
    const char *p = authorization + 7;
    while (*p == ' ')
        p++;
    return *p ? p : NULL;
}

/* Every key is compared in full, so that the time says nothing about the keys. */
static int find_key(struct auth *a, const uint8_t hash[32], char name[API_KEY_NAME_BYTES])
{
    int found = 0;
    pthread_mutex_lock(&a->lock);
    for (size_t i = 0; i < a->keys.n; i++) {
        uint8_t differs = 0;
        for (int j = 0; j < 32; j++)
            differs |= (uint8_t)(a->keys.key[i].sha256[j] ^ hash[j]);
        if (!differs) {
            memcpy(name, a->keys.key[i].name, API_KEY_NAME_BYTES);
            found = 1;
        }
    }
    pthread_mutex_unlock(&a->lock);
    return found;
}

enum status auth_check(struct auth *a, const char *authorization, const char *peer, char client[CLIENT_BYTES],
                       struct error *err)
{
    const char *key = bearer(authorization);
    if (!a->path) {
        if (key)
            identity(key, strlen(key), client);
        else
            snprintf(client, CLIENT_BYTES, "%.60s", peer);
        return STATUS_OK;
    }
    uint8_t hash[32];
    char name[API_KEY_NAME_BYTES];
    if (!key)
        return error_param(err, STATUS_UNAUTHENTICATED, NULL, "missing_api_key",
                           "an API key is needed: Authorization: Bearer KEY");
    sha256(key, strlen(key), hash);
    if (!find_key(a, hash, name))
        return error_param(err, STATUS_UNAUTHENTICATED, NULL, "invalid_api_key", "this API key is not known here");
    identity(name, strlen(name), client);
    return STATUS_OK;
}
