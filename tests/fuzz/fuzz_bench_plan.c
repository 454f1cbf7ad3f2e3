/* tests/fuzz/fuzz_bench_plan.c - what `sluice bench` is told, by its flags and by the server whose count of tokens it goes by: whatever is accepted
 * gives lengths within its range, objectives that can be met, and bodies that are JSON and ask for what was said. The input: 24 bytes of
 * numbers, then the texts of --prompt-tokens, --slo, --model and --body, with a 0 behind each. */
#include <jansson.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/check.h"
#include "deploy/cli/bench_plan.h"
#include "deploy/cli/bench_stats.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MOST_BYTES = 2048, MOST_WORDS = 1000 };

struct numbers {
    uint64_t seed;
    int64_t n_tokens_1, n_tokens_2; /* what a server claims that two prompts have */
};
_Static_assert(sizeof(struct numbers) == 24, "as it lies in the input");

static void check_length(const char *text, uint64_t seed)
{
    struct length l = {0};
    struct error err = {0};
    if (length_parse("flag", text, &l, &err) != STATUS_OK) {
        CHECK(err.status == STATUS_CONFIG && err.message[0] && !l.min && !l.max);
        return;
    }
    CHECK(l.min >= 1 && l.min <= l.max && (l.kind != LENGTH_FIXED || l.min == l.max));
    for (uint64_t i = 0; i < 8; i++) {
        uint32_t n = length_draw(&l, seed, seed + i);
        CHECK(n >= l.min && n <= l.max && n == length_draw(&l, seed, seed + i));
    }
}

static void check_slo(const char *text)
{
    struct slo o = {0}, none = {0}, much = {1e9, 1e9, 1e9, 1e9};
    struct error err = {0};
    if (slo_parse(text, &o, &err) != STATUS_OK) {
        CHECK(err.status == STATUS_CONFIG && err.message[0] && !slo_any(&o));
        return;
    }
    CHECK(slo_any(&o) && slo_met(&o, &none) && !slo_met(&o, &much) && slo_met(&o, &o));
}

/* Each key of --body is in the body, with its value. */
static void check_extra(const json_t *body, const char *text)
{
    json_t *extra = json_loads(text, 0, NULL), *value;
    const char *key;
    CHECK(json_is_object(extra));
    json_object_foreach(extra, key, value)
    {
        static const char *const own[] = {"max_tokens", "return_token_ids", "prompt", "messages"}; /* what follows wins */
        int is_own = 0;
        for (size_t i = 0; i < ARRAY_LEN(own); i++)
            is_own |= strcmp(key, own[i]) == 0;
        CHECK(is_own || json_equal(json_object_get(body, key), value));
    }
    json_decref(extra);
}

static size_t n_words(const char *text)
{
    size_t n = *text != 0;
    for (; *text; text++)
        n += *text == ' ';
    return n;
}

static void check_body(const struct plan *p, uint64_t index, uint32_t n_prompt, int flags)
{
    size_t len;
    char *text = plan_body(p, index, n_prompt, 7, flags, &len);
    CHECK(text);
    json_t *body = json_loadb(text, len, JSON_ALLOW_NUL, NULL);
    CHECK(json_is_object(body));
    CHECK(json_integer_value(json_object_get(body, "max_tokens")) == 7);
    if (p->o.has_ids) {
        const json_t *ids = json_object_get(body, "prompt");
        CHECK(json_array_size(ids) == n_prompt);
        for (size_t i = 0; i < json_array_size(ids); i++) {
            json_int_t id = json_integer_value(json_array_get(ids, i));
            CHECK(id >= p->o.first_id && id <= p->o.last_id);
        }
    } else {
        const json_t *prompt = p->o.is_chat ? json_object_get(json_array_get(json_object_get(body, "messages"), 0), "content")
                                            : json_object_get(body, "prompt");
        size_t n = n_words(json_string_value(prompt));
        CHECK(n >= 1 && n <= 5ull * n_prompt + 1); /* a word has a fifth of a token at least */
    }
    if (p->o.extra_json)
        check_extra(body, p->o.extra_json);
    json_decref(body);
    free(text);
}

static void check_plan(const struct numbers *n, const char *model, const char *extra)
{
    const struct plan_options o = {.model = *model ? model : NULL, .extra_json = *extra ? extra : NULL, .is_chat = n->seed & 1,
                                   .has_ids = (n->seed & 3) == 2, .first_id = (uint32_t)(n->seed >> 8 & 0xffff),
                                   .last_id = (uint32_t)((n->seed >> 8 & 0xffff) + (n->seed >> 24 & 0xffff)),
                                   .shared_prefix = (uint32_t)(n->seed >> 40 & 0x1ff), .seed = n->seed};
    struct plan p;
    struct error err = {0};
    if (plan_init(&p, &o, &err) != STATUS_OK) {
        CHECK(err.message[0] && (err.status == STATUS_CONFIG || *model)); /* a name that is no UTF-8 cannot be sent */
        return;
    }
    const uint32_t n_prompt = 1 + (uint32_t)(n->seed >> 52) % MOST_WORDS;
    check_body(&p, n->seed, n_prompt, 0);
    plan_calibrate(&p, 64, n->n_tokens_1, 512, n->n_tokens_2);
    CHECK(p.tokens_per_word >= 0.2 && p.tokens_per_word <= 50 && p.tokens_around >= 0 && isfinite(p.tokens_around));
    check_body(&p, n->seed + 1, n_prompt, PLAN_TOKEN_IDS);
    check_body(&p, n->seed + 2, n_prompt, PLAN_OWN_PREFIX);
    plan_fini(&p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char text[MOST_BYTES + 4];
    const char *texts[4] = {text};
    struct numbers n;
    if (size < sizeof n || size > MOST_BYTES)
        return 0;
    memcpy(&n, data, sizeof n);
    memset(text, 0, sizeof text);
    memcpy(text, data + sizeof n, size - sizeof n);
    for (size_t i = 1; i < ARRAY_LEN(texts); i++)
        texts[i] = texts[i - 1] + strlen(texts[i - 1]) + 1;
    check_length(texts[0], n.seed);
    check_slo(texts[1]);
    check_plan(&n, texts[2], texts[3]);
    return 0;
}
