#include "coordinator/resume_token.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <string.h>
#include <sys/random.h>

#include "coordinator/request.h"

enum { TOKEN_VERSION = 1 };
static const char PURPOSE[] = "sluice resume token";

enum status resume_key_init(struct resume_key *k, const char *secret, const uint8_t model_hash[32], struct error *err)
{
    unsigned len = sizeof k->key;
    memcpy(k->model_hash, model_hash, sizeof k->model_hash);
    if (!secret[0]) {
        if (getrandom(k->key, sizeof k->key, 0) != (ssize_t)sizeof k->key)
            return error_set(err, STATUS_IO, "no random key for resume tokens");
        return STATUS_OK;
    }
    /* The secret itself has other uses. */
    if (!HMAC(EVP_sha256(), secret, (int)strlen(secret), (const uint8_t *)PURPOSE, sizeof PURPOSE, k->key, &len))
        return error_set(err, STATUS_OUT_OF_MEMORY, "no memory for the key of resume tokens");
    return STATUS_OK;
}

/* Each field with its length in front, so that no two requests read alike. */
static int add(EVP_MD_CTX *h, const void *data, size_t len)
{
    uint64_t n = len;
    return EVP_DigestUpdate(h, &n, sizeof n) && (len == 0 || EVP_DigestUpdate(h, data, len));
}

/* n_prompt and n_bias follow from the rest. */
static int add_extras(EVP_MD_CTX *h, const struct request *r)
{
    const struct sampler_params *s = &r->sampler;
    const float floats[] = {s->repeat_penalty, s->presence_penalty, s->frequency_penalty, s->typical_p};
    const uint32_t ints[] = {s->repeat_last_n, s->n_top};
    return add(h, floats, sizeof floats) && add(h, ints, sizeof ints) &&
           add(h, r->bias_ids, s->n_bias * sizeof *r->bias_ids) && add(h, r->bias_bits, s->n_bias * sizeof *r->bias_bits);
}

static int add_request(EVP_MD_CTX *h, const struct resume_key *k, const struct request *r)
{
    const int32_t flags[] = {r->ignore_eos != 0, r->no_cache != 0, (int32_t)r->n_stops};
    const struct sampler_params *s = &r->sampler;
    int ok = add(h, k->model_hash, sizeof k->model_hash) && add(h, r->id, strlen(r->id)) &&
             add(h, r->client, strlen(r->client)) && add(h, &s->temperature, sizeof s->temperature) &&
             add(h, &s->top_p, sizeof s->top_p) && add(h, &s->min_p, sizeof s->min_p) && add(h, &s->top_k, sizeof s->top_k) &&
             add(h, &s->seed, sizeof s->seed) && add_extras(h, r) && add(h, &r->max_tokens, sizeof r->max_tokens) && add(h, flags, sizeof flags);
    for (uint32_t i = 0; ok && i < r->n_stops; i++)
        ok = add(h, r->stops[i].data, r->stops[i].len);
    return ok && add(h, r->prompt_ids, r->n_prompt * sizeof *r->prompt_ids);
}

enum status resume_token_make(const struct resume_key *k, const struct request *r, struct resume_token *t, struct error *err)
{
    uint8_t sum[EVP_MAX_MD_SIZE + sizeof t->profile] = {0};
    unsigned n_sum = 0, n_mac = 0;
    uint8_t mac[EVP_MAX_MD_SIZE];
    EVP_MD_CTX *h = EVP_MD_CTX_new();
    int ok = h && EVP_DigestInit_ex(h, EVP_sha256(), NULL) && add_request(h, k, r) && EVP_DigestFinal_ex(h, sum, &n_sum);
    EVP_MD_CTX_free(h);
    if (ok) {
        size_t n_profile = strlen(t->profile);
        memcpy(sum + n_sum, t->profile, n_profile);
        ok = HMAC(EVP_sha256(), k->key, sizeof k->key, sum, n_sum + n_profile, mac, &n_mac) && n_mac == sizeof t->mac;
    }
    if (!ok)
        return error_set(err, STATUS_OUT_OF_MEMORY, "no memory for a resume token");
    memcpy(t->mac, mac, sizeof t->mac);
    return STATUS_OK;
}

enum status resume_token_check(const struct resume_key *k, const struct request *r, const struct resume_token *t,
                               struct error *err)
{
    struct resume_token own = *t; /* its profile */
    TRY(resume_token_make(k, r, &own, err));
    if (CRYPTO_memcmp(own.mac, t->mac, sizeof t->mac) == 0)
        return STATUS_OK;
    return error_param(err, STATUS_FORBIDDEN, "resume", "resume_token",
                       "the token is not of this request, or of a coordinator with another secret");
}

uint32_t resume_token_write(const struct resume_token *t, uint8_t out[RESUME_TOKEN_BYTES])
{
    size_t n_profile = strlen(t->profile);
    out[0] = TOKEN_VERSION;
    memcpy(out + 1, t->mac, sizeof t->mac);
    memcpy(out + 1 + sizeof t->mac, t->profile, n_profile);
    return (uint32_t)(1 + sizeof t->mac + n_profile);
}

int resume_token_read(const void *data, size_t len, struct resume_token *out)
{
    const uint8_t *p = data;
    struct resume_token t = {.profile = ""};
    if (len < 1 + sizeof t.mac || len > RESUME_TOKEN_BYTES || p[0] != TOKEN_VERSION)
        return 0;
    memcpy(t.mac, p + 1, sizeof t.mac);
    memcpy(t.profile, p + 1 + sizeof t.mac, len - 1 - sizeof t.mac);
    if (strlen(t.profile) != len - 1 - sizeof t.mac)
        return 0;
    *out = t;
    return 1;
}
