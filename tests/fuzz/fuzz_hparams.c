/* tests/fuzz/fuzz_hparams.c - a right model of some architecture with some of its keys and tensors changed.
 *
 * fuzz_gguf mutates bytes of a file and seldom gets past its structure; here the file is always well formed, and what is
 * drawn is what it says. What is accepted must be consistent: all tensors of the layers, a split, packed weights and the
 * buffers of a stage. The input: one byte of architecture and shape, then edits (struct edit). Seeds: corpus/hparams, written
 * by make_hparams_seeds.py. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/check.h"
#include "common/base/log.h"
#include "common/model/hparams.h"
#include "common/model/split.h"
#include "common/base/utf8.h"
#include "stage/forward.h"
#include "stage/weights.h"
#include "tests/unit/model/gguf_maker.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const architectures[] = {"llama", "qwen2", "qwen3", "gemma3", "qwen3moe", "qwen3next", "gemma2"};

/* Suffixes of keys; those with a dot in front stand for themselves, without the architecture. */
static const char *const keys[] = {
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "attention.causal",
    "attention.scale",
    "attention.sliding_window",
    "attention.sliding_window_pattern",
    "attention.max_alibi_bias",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "rope.dimension_count",
    "rope.dimension_sections",
    "rope.freq_base",
    "rope.freq_base_swa",
    "rope.local.freq_base",
    "rope.scale_linear",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.attn_factor",
    "expert_count",
    "expert_used_count",
    "expert_feed_forward_length",
    "expert_shared_count",
    "expert_gating_func",
    "expert_weights_norm",
    "expert_weights_scale",
    "leading_dense_block_count",
    "use_parallel_residual",
    ".general.architecture",
    ".general.type",
    ".general.name",
    ".split.count",
    ".tokenizer.ggml.tokens",
};

static const char *const texts[] = {"", "none", "linear", "yarn", "model", "llama", "gemma3", "qwen3moe"};

enum { EDIT_BYTES = 7, MAX_EDITS = 16, MAX_SIDE = 16 };

/* kind % 8: 0 a whole number, 1 a float, 2 a truth value, 3 a text, 4 an array of truth values, 5 the key goes, 6 a tensor's
 * side or type, 7 a tensor goes or comes. From 248 on: 248 a divisor of the rotary frequencies, 249 the name in the file, 250 the
 * name of the file, the others as kind % 8. */
enum { DIVISOR = 248, NAME = 249, FILE_NAME = 250 };

struct edit {
    uint8_t kind, what;
    uint32_t value;
    uint8_t extra;
};

struct made {
    struct maker *maker;
    char path[256];
    uint32_t n_divisors, divisor[64]; /* bits of floats; a bit pattern of 0 leaves a one */
};

static void key_name(const char *arch, uint8_t what, char out[96])
{
    const char *suffix = what == 255 ? "attention.key_length_swa" : keys[what % ARRAY_LEN(keys)];
    if (suffix[0] == '.')
        snprintf(out, 96, "%s", suffix + 1);
    else
        snprintf(out, 96, "%s.%s", arch, suffix);
}

/* Of truth values, or, from 192 on, of small numbers with a sign. */
static void set_list(struct maker *m, const char *key, const struct edit *e)
{
    enum { INT8 = 1, BOOL = 7, ARRAY = 9 };
    const int small = e->extra >= 192;
    uint8_t value[12 + 32] = {small ? INT8 : BOOL};
    uint32_t n = e->extra % 33;
    value[4] = (uint8_t)n;
    for (uint32_t i = 0; i < n; i++)
        value[12 + i] = small ? (uint8_t)((e->value >> i & 3) - 1) : e->value >> i & 1;
    maker_raw(m, key, ARRAY, value, 12 + n);
}

static void edit_key(struct maker *m, const char *arch, const struct edit *e)
{
    char key[96];
    float f;
    key_name(arch, e->what, key);
    memcpy(&f, &e->value, sizeof f);
    switch (e->kind % 8) {
    case 0:
        maker_u32(m, key, e->extra & 1 ? e->value : e->value % 64);
        break;
    case 1:
        maker_f32(m, key, e->extra & 1 ? f : (float)(int32_t)e->value / 65536);
        break;
    case 2:
        maker_bool(m, key, e->value & 1);
        break;
    case 3:
        maker_text(m, key, texts[e->value % ARRAY_LEN(texts)]);
        break;
    case 4:
        set_list(m, key, e);
        break;
    default:
        for (uint32_t i = 0; i < m->n_keys; i++)
            if (strcmp(m->keys[i].name, key) == 0) {
                maker_drop(m, key);
                break;
            }
    }
}

static void edit_side(struct maker_tensor *t, const struct edit *e)
{
    static const uint32_t types[] = {TENSOR_F32, TENSOR_F16, TENSOR_Q4_0, TENSOR_Q8_0, TENSOR_Q4_K, TENSOR_I32};
    uint32_t dim = e->extra % 5;
    if (dim == 4) {
        uint32_t type = types[e->value % ARRAY_LEN(types)];
        if (t->ne[0] % tensor_type_info(type)->block_elements == 0)
            t->type = type;
        return;
    }
    if (dim == 0) /* whole blocks of any type */
        t->ne[0] = 32 * (1 + e->value % 2);
    else
        t->ne[dim] = 1 + e->value % MAX_SIDE;
    t->type = TENSOR_F32;
    t->n_dims = t->n_dims > dim ? t->n_dims : dim + 1;
}

static void edit_tensor(struct maker *m, const struct edit *e)
{
    struct maker_tensor *t = &m->tensors[e->what % m->n_tensors];
    if (e->kind % 8 == 6) {
        edit_side(t, e);
    } else if (e->extra & 1) {
        char name[96];
        snprintf(name, sizeof name, "%s", t->name);
        name[e->value % strlen(name)] ^= 1;
        maker_add_tensor(m, name, TENSOR_F32, 32, 1);
    } else if (m->n_tensors > 1) {
        char name[96];
        snprintf(name, sizeof name, "%s", t->name);
        maker_drop_tensor(m, name);
    }
}

/* The tensor comes with the first divisor that is set, one for each pair of a head of 32 unless extra says otherwise. */
static void edit_divisor(struct made *f, const struct edit *e)
{
    if (f->n_divisors == 0) {
        f->n_divisors = e->extra & 1 ? 1 + e->extra / 2u % 64 : 16;
        maker_add_tensor(f->maker, "rope_freqs.weight", TENSOR_F32, f->n_divisors, 1)->n_dims = 1;
    }
    f->divisor[e->what % f->n_divisors] = e->value;
}

/* Five bytes, several times. */
static void edit_name(struct made *f, const struct edit *e)
{
    uint8_t text[8 + 5 * 40];
    const size_t n = 5 * (1 + e->what % 40u);
    for (size_t i = 0; i < n; i++)
        text[8 + i] = i % 5 < 4 ? (uint8_t)(e->value >> 8 * (i % 5)) : e->extra;
    put_u64(text, n);
    if (e->kind == NAME) {
        maker_raw(f->maker, "general.name", 8, text, 8 + n);
        return;
    }
    memcpy(f->path, text + 8, n);
    memcpy(f->path + n, ".gguf", 6);
}

static void put_divisors(struct made *f, uint8_t *bytes)
{
    const struct maker_tensor *t = NULL;
    for (uint32_t i = 0; i < f->maker->n_tensors; i++)
        if (strcmp(f->maker->tensors[i].name, "rope_freqs.weight") == 0)
            t = &f->maker->tensors[i];
    for (uint32_t i = 0; t && t->type == TENSOR_F32 && i < f->n_divisors && i < t->ne[0]; i++)
        if (f->divisor[i])
            put_u32(bytes + t->at_data + 4 * i, f->divisor[i]);
}

static void make(const uint8_t *data, size_t size, struct made *f)
{
    const char *arch = architectures[data[0] % ARRAY_LEN(architectures)];
    uint8_t bits = data[0] / ARRAY_LEN(architectures);
    struct maker_shape shape = {.n_layers = 1 + bits % 3, .n_embd = 64, .n_heads = 2, .n_kv_heads = 1, .n_ff = 64, .n_vocab = 5,
                                .type = bits & 4 ? TENSOR_Q8_0 : TENSOR_F32, .tied = bits >> 3 & 1};
    if (strcmp(arch, "qwen3moe") == 0 || (bits & 16 && strcmp(arch, "llama") == 0)) {
        shape.n_experts = 4;
        shape.n_experts_used = 2;
        shape.n_ff_expert = 32;
    }
    struct maker *m = maker_create();
    maker_model(m, arch, &shape);
    *f = (struct made){.maker = m, .path = "fuzz.gguf"};
    data++;
    for (size_t n = size - 1, i = 0; i < MAX_EDITS && n >= EDIT_BYTES; i++, n -= EDIT_BYTES, data += EDIT_BYTES) {
        struct edit e = {.kind = data[0], .what = data[1], .extra = data[6]};
        memcpy(&e.value, data + 2, sizeof e.value);
        if (e.kind == DIVISOR)
            edit_divisor(f, &e);
        else if (e.kind == NAME || e.kind == FILE_NAME)
            edit_name(f, &e);
        else if (e.kind % 8 < 6)
            edit_key(m, arch, &e);
        else
            edit_tensor(m, &e);
    }
}

/* --- what is accepted --------------------------------------------------------------------------------------------------- */

static void check_layers(const struct model *m)
{
    const struct hparams *hp = &m->hp;
    CHECK(hp->n_experts_used <= hp->n_experts && (hp->n_experts == 0) == (hp->n_ff_expert == 0));
    CHECK(hp->attention_scale > 0 && hp->rope_factor >= 1 && hp->attn_softcap >= 0 && hp->final_softcap >= 0);
    for (uint32_t l = 0; l < hp->n_layers; l++) {
        const struct gguf_tensor *t[N_LAYER_TENSORS];
        CHECK(model_layer(m, l, t, NULL) == STATUS_OK);
        CHECK(t[LAYER_ATTN_Q]->ne[1] == (uint64_t)hp->n_heads * hp->head_dim && !t[LAYER_FFN_GATE] == (hp->n_experts > 0));
        CHECK(model_layer_window(m, l) == 0 || model_layer_window(m, l) == hp->window);
        CHECK(model_layer_rope(m, l) == 0 || hp->window > 0);
    }
}

/* What clients see in JSON. */
static void check_name(const struct model *m, const char *path)
{
    struct text t;
    const size_t n = strlen(m->name);
    CHECK(n < sizeof m->name && utf8_valid_len(m->name, n) == n);
    for (size_t i = 0; i < n; i++)
        CHECK((unsigned char)m->name[i] >= 0x20 && m->name[i] != 0x7f && !(m->name[i] == '\xc2' && (unsigned char)m->name[i + 1] < 0xa0));
    if (!gguf_text(m->gguf, "general.name", &t) || t.len == 0)
        t = (struct text){strrchr(path, '/') ? strrchr(path, '/') + 1 : path, 0};
    CHECK(n > 0 || t.len == 0); /* a byte that may not be shown is shown as another */
}

static void check_split(const struct model *m)
{
    struct split s;
    uint32_t n_stages = m->hp.n_layers < 2 ? 1 : 2;
    CHECK(split_plan(m, n_stages, "auto", &s, NULL) == STATUS_OK);
    for (uint32_t i = 0; i < n_stages; i++)
        CHECK(s.first_layer[i] < s.first_layer[i + 1]);
}

/* Plans, packs and sizes the whole model as one stage. */
static void check_stage(const struct model *m)
{
    static struct team *team;
    const struct ops *ops;
    struct weights w;
    struct error err = {0};
    if (!team) {
        log_set_levels("warn", NULL);
        CHECK(team_create(1, NULL, &team, NULL) == STATUS_OK);
    }
    CHECK(ops_open("cpu", "portable", &ops, NULL) == STATUS_OK);
    if (weights_plan(m, ops, 0, m->hp.n_layers, 1, 1, &w, &err) != STATUS_OK) {
        CHECK(err.status == STATUS_UNSUPPORTED || err.status == STATUS_BAD_MODEL);
        CHECK(strstr(err.message, "tensor ") || m->hp.head_dim % 8);
        return;
    }
    CHECK(w.file_bytes > 0);
    CHECK(weights_load(&w, team, NULL) == STATUS_OK);
    CHECK(!w.rope_freq[1] == (m->hp.window == 0));
    for (int t = 0; t < MODEL_ROPES; t++)
        for (uint32_t i = 0; w.rope_freq[t] && i < m->hp.n_rot / 2; i++)
            CHECK(w.rope_freq[t][i] >= 0 && w.rope_freq[t][i] <= 4); /* else angles without a sine at the last positions */
    const struct forward_options fo = {.weights = &w, .team = team, .max_rows = 64};
    CHECK(forward_bytes(&fo) > 0 && forward_bytes(&fo) < 1u << 30);
    weights_free(&w);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    struct made made;
    struct gguf *g;
    struct model m;
    struct error err = {0};
    size_t len;
    make(data, size, &made);
    uint8_t *bytes = maker_write(made.maker, &len);
    put_divisors(&made, bytes);
    maker_destroy(made.maker);
    if (gguf_open_memory(bytes, len, &g, &err) == STATUS_OK) {
        if (model_from_gguf(g, made.path, &m, &err) == STATUS_OK) {
            check_name(&m, made.path);
            check_layers(&m);
            check_split(&m);
            check_stage(&m);
            model_close(&m);
        } else {
            CHECK(err.status == STATUS_BAD_MODEL && err.message[0]);
            gguf_close(g);
        }
    }
    free(bytes);
    return 0;
}
