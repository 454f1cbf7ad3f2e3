/* Whole tiny models against a model in doubles that rounds where stage/forward does (tests/lib/plain_model.h). All models against
 * other implementations: tests/integ/test_quality_tiny.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/check.h"
#include "tests/lib/chain.h"
#include "tests/lib/plain_model.h"
#include "tests/lib/tiny.h"

static struct chain *open_chain(const char *path, const char *backend, const char *isa)
{
    struct error err;
    struct chain *c;
    const struct chain_options o = {.model_path = path, .backend = backend, .isa = isa, .n_threads = 2, .context = 512,
                                    .max_rows = 256};
    if (chain_open(&o, &c, &err) != STATUS_OK)
        fail_msg("%s: %s", path, err.message);
    return c;
}

/* Against a plain model that rounds as Sluice does: what is left is the order of sums, and rounding borders that they cross
 * (with int8 activations most rows cross one sooner or later; the first few do not). near_max: of the rows that agree best, the
 * largest difference; near: how many those are. */
static void check_plain_tiny(const char *name, struct tiny *t, unsigned roundings, uint32_t near, double near_max, double rms)
{
    struct chain *c = open_chain(t->path, "cpu", "auto");
    float *logits = tiny_logits(c, t), *plain = calloc((size_t)t->n_rows * t->n_vocab, sizeof *plain);
    double row_max[TINY_MAX_ROWS];
    for (uint32_t s = 0; s < TINY_SEQUENCES; s++)
        plain_model_logits(chain_model(c), t->sequences[s].ids, t->sequences[s].n, roundings,
                           plain + (size_t)t->sequences[s].first_row * t->n_vocab);
    tiny_row_max(plain, logits, t, row_max);
    struct distance d = tiny_distance(plain, logits, t->n_rows, t->n_vocab);
    printf("%s from the plain model by %s: %u rows within %.2e, median %.2e, max %.2e, rms %.2e\n", name, chain_backend(c),
           near, row_max[near - 1], row_max[t->n_rows / 2], d.max_abs, d.rms);
    if (!(row_max[near - 1] <= near_max && d.rms <= rms))
        fail_msg("%s by %s is too far from the plain model", name, chain_backend(c));
    free(logits);
    free(plain);
    chain_close(c);
    tiny_close(t);
}

static void check_plain(const char *name, unsigned roundings, uint32_t near, double near_max, double rms)
{
    check_plain_tiny(name, tiny_open(name, ""), roundings, near, near_max, rms);
}

static const char *const float_models[] = {"llama-f32", "llama-tied-f32", "llama-rope3-f32", "llama-f16", "llama-bf16"};
static const char *const block32_models[] = {"llama-q4_0", "llama-q4_1", "llama-q5_0", "llama-q5_1", "llama-q8_0"};
static const char *const block256_models[] = {"llama-q4_k", "llama-q5_k", "llama-q6_k"};

/* What is special about each: tests/vectors/tiny/README.md. */
static const char *const other_float_models[] = {"qwen2-f32", "qwen3-f32", "gemma3-f32", "mixtral-f32", "qwen3moe-f32"};
static const char *const other_models[] = {"qwen2-q4_k_m", "qwen3-q4_0", "gemma3-q8_0", "qwen3moe-q8_0", "qwen3moe-q4_k"};

static void a_plain_model_with_the_same_roundings_gives_the_same_logits(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(float_models); i++)
        check_plain(float_models[i], PLAIN_KV_F16, 85, 5e-4, 5e-4);
    for (size_t i = 0; i < ARRAY_LEN(block32_models); i++)
        check_plain(block32_models[i], PLAIN_KV_F16 | PLAIN_INT8, 5, 1e-4, 0.03);
    for (size_t i = 0; i < ARRAY_LEN(block256_models); i++)
        check_plain(block256_models[i], PLAIN_KV_F16 | PLAIN_INT8, 5, 1e-4, 0.03);
}

static void a_plain_model_of_every_other_architecture_gives_the_same_logits(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(other_float_models); i++)
        check_plain(other_float_models[i], PLAIN_KV_F16, 85, 1e-3, 5e-4); /* gemma3: K and V of eight layers are rounded */
    for (size_t i = 0; i < ARRAY_LEN(other_models); i++)
        check_plain(other_models[i], PLAIN_KV_F16 | PLAIN_INT8, 5, 1e-4, 0.1);
}

/* --- keys that no tiny file has -------------------------------------------------------------------------------------------- */

enum { TYPE_F32 = 6, TYPE_TEXT = 8, HEADER = 24, ALIGNMENT = 32 };

struct added {
    uint8_t bytes[512];
    size_t n;
    uint64_t n_keys;
};

static void add_bytes(struct added *a, const void *p, size_t n)
{
    assert_true(a->n + n <= sizeof a->bytes);
    memcpy(a->bytes + a->n, p, n);
    a->n += n;
}

static void add_name(struct added *a, const char *name, uint32_t type)
{
    uint64_t len = strlen(name);
    add_bytes(a, &len, sizeof len);
    add_bytes(a, name, len);
    add_bytes(a, &type, sizeof type);
    a->n_keys++;
}

static void add_float(struct added *a, const char *name, float v)
{
    add_name(a, name, TYPE_F32);
    add_bytes(a, &v, sizeof v);
}

/* A text that nobody reads, as long as it takes to leave the tensors aligned. */
static void add_padding(struct added *a)
{
    static const char zeros[ALIGNMENT] = {0};
    add_name(a, "padding", TYPE_TEXT);
    uint64_t len = (ALIGNMENT - (a->n + sizeof len) % ALIGNMENT) % ALIGNMENT;
    add_bytes(a, &len, sizeof len);
    add_bytes(a, zeros, len);
}

/* The file with further keys, in `path`. */
static void write_with_keys(const char *from, const struct added *a, char path[64])
{
    FILE *in = fopen(from, "rb");
    snprintf(path, 64, "/tmp/sluice-keys-XXXXXX");
    int fd = mkstemp(path);
    assert_true(in && fd >= 0);
    FILE *out = fdopen(fd, "wb");
    uint8_t block[4096];
    uint64_t n_keys;
    assert_int_equal(fread(block, 1, HEADER, in), HEADER);
    memcpy(&n_keys, block + 16, sizeof n_keys);
    n_keys += a->n_keys;
    memcpy(block + 16, &n_keys, sizeof n_keys);
    fwrite(block, 1, HEADER, out);
    fwrite(a->bytes, 1, a->n, out);
    for (size_t n; (n = fread(block, 1, sizeof block, in)) > 0;)
        fwrite(block, 1, n, out);
    assert_int_equal(fclose(out), 0);
    fclose(in);
}

static void softcaps_scales_and_linear_rope_are_those_of_the_plain_model(void **state)
{
    (void)state;
    struct tiny *t = tiny_open("gemma3-f32", "");
    struct added a = {.n = 0};
    char path[64];
    add_float(&a, "gemma3.attn_logit_softcapping", 2);
    add_float(&a, "gemma3.final_logit_softcapping", 5);
    add_float(&a, "gemma3.attention.scale", 0.3f);
    add_float(&a, "gemma3.rope.scaling.factor", 4);
    add_float(&a, "gemma3.rope.local.freq_base", 500);
    add_padding(&a);
    write_with_keys(t->path, &a, path);
    snprintf(t->path, sizeof t->path, "%s", path);
    check_plain_tiny("gemma3-f32 with more keys", t, PLAIN_KV_F16, 85, 1e-3, 5e-4);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plain_model_with_the_same_roundings_gives_the_same_logits),
        cmocka_unit_test(a_plain_model_of_every_other_architecture_gives_the_same_logits),
        cmocka_unit_test(softcaps_scales_and_linear_rope_are_those_of_the_plain_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
