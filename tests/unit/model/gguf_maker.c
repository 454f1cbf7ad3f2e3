#include "tests/unit/model/gguf_maker.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/check.h"
#include "common/model/tensor_type.h"

enum { U32 = 4, F32 = 6, BOOL = 7, TEXT = 8, ARRAY = 9 };

void put_u32(uint8_t *at, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        at[i] = (uint8_t)(v >> 8 * i);
}

void put_u64(uint8_t *at, uint64_t v)
{
    put_u32(at, (uint32_t)v);
    put_u32(at + 4, (uint32_t)(v >> 32));
}

struct maker *maker_create(void)
{
    struct maker *m = calloc(1, sizeof *m);
    CHECK(m);
    m->alignment = 32;
    return m;
}

void maker_destroy(struct maker *m)
{
    for (uint32_t i = 0; i < m->n_keys; i++)
        free(m->keys[i].value);
    free(m->keys);
    free(m->tensors);
    free(m);
}

/* --- keys
 * --------------------------------------------------------------------------------------------------------------- */

static struct maker_key *find_key(struct maker *m, const char *name)
{
    for (uint32_t i = 0; i < m->n_keys; i++)
        if (strcmp(m->keys[i].name, name) == 0)
            return &m->keys[i];
    return NULL;
}

struct maker_key *maker_key(struct maker *m, const char *name)
{
    struct maker_key *k = find_key(m, name);
    CHECK(k);
    return k;
}

static void set_key(struct maker_key *k, uint32_t type, const void *value, size_t len)
{
    free(k->value);
    k->value = malloc(len ? len : 1);
    CHECK(k->value);
    memcpy(k->value, value, len);
    k->type = type;
    k->len = len;
}

void maker_add_raw(struct maker *m, const char *name, uint32_t type, const void *value, size_t len)
{
    if (m->n_keys == m->max_keys) {
        m->max_keys = m->max_keys ? 2 * m->max_keys : 32;
        m->keys = realloc(m->keys, m->max_keys * sizeof *m->keys);
        CHECK(m->keys);
    }
    struct maker_key *k = &m->keys[m->n_keys++];
    memset(k, 0, sizeof *k);
    snprintf(k->name, sizeof k->name, "%s", name);
    set_key(k, type, value, len);
}

void maker_raw(struct maker *m, const char *name, uint32_t type, const void *value, size_t len)
{
    struct maker_key *k = find_key(m, name);
    if (k)
        set_key(k, type, value, len);
    else
        maker_add_raw(m, name, type, value, len);
}

void maker_u32(struct maker *m, const char *name, uint32_t v)
{
    uint8_t raw[4];
    put_u32(raw, v);
    maker_raw(m, name, U32, raw, 4);
}

void maker_f32(struct maker *m, const char *name, float v)
{
    uint8_t raw[4];
    uint32_t bits;
    memcpy(&bits, &v, 4);
    put_u32(raw, bits);
    maker_raw(m, name, F32, raw, 4);
}

void maker_bool(struct maker *m, const char *name, uint8_t v)
{
    maker_raw(m, name, BOOL, &v, 1);
}

void maker_text(struct maker *m, const char *name, const char *v)
{
    uint8_t raw[512];
    size_t n = strlen(v);
    CHECK(n + 8 <= sizeof raw);
    put_u64(raw, n);
    memcpy(raw + 8, v, n);
    maker_raw(m, name, TEXT, raw, n + 8);
}

void maker_texts(struct maker *m, const char *name, uint64_t n)
{
    size_t len = 12;
    uint8_t *raw = malloc(12 + n * 24);
    CHECK(raw);
    put_u32(raw, TEXT);
    put_u64(raw + 4, n);
    for (uint64_t i = 0; i < n; i++) {
        int digits = snprintf((char *)raw + len + 8, 16, "t%u", (unsigned)i);
        put_u64(raw + len, (uint64_t)digits);
        len += 8 + (size_t)digits;
    }
    maker_raw(m, name, ARRAY, raw, len);
    free(raw);
}

void maker_drop(struct maker *m, const char *name)
{
    struct maker_key *k = maker_key(m, name);
    free(k->value);
    memmove(k, k + 1, (size_t)(m->keys + --m->n_keys - k) * sizeof *k);
}

/* --- tensors
 * ------------------------------------------------------------------------------------------------------------ */

struct maker_tensor *maker_add_tensor(struct maker *m, const char *name, uint32_t type, uint64_t ne0, uint64_t ne1)
{
    if (m->n_tensors == m->max_tensors) {
        m->max_tensors = m->max_tensors ? 2 * m->max_tensors : 64;
        m->tensors = realloc(m->tensors, m->max_tensors * sizeof *m->tensors);
        CHECK(m->tensors);
    }
    struct maker_tensor *t = &m->tensors[m->n_tensors++];
    *t = (struct maker_tensor){.type = type, .n_dims = ne1 == 1 ? 1 : 2, .ne = {ne0, ne1, 1, 1}};
    snprintf(t->name, sizeof t->name, "%s", name);
    return t;
}

struct maker_tensor *maker_tensor(struct maker *m, const char *name)
{
    for (uint32_t i = 0; i < m->n_tensors; i++)
        if (strcmp(m->tensors[i].name, name) == 0)
            return &m->tensors[i];
    CHECK(!"no such tensor");
    return NULL;
}

void maker_drop_tensor(struct maker *m, const char *name)
{
    struct maker_tensor *t = maker_tensor(m, name);
    memmove(t, t + 1, (size_t)(m->tensors + --m->n_tensors - t) * sizeof *t);
}

static void arch_key(struct maker *m, char out[96], const char *suffix)
{
    const struct maker_key *k = maker_key(m, "general.architecture");
    snprintf(out, 96, "%.*s.%s", (int)(k->len - 8), (const char *)k->value + 8, suffix);
}

void maker_arch_u32(struct maker *m, const char *suffix, uint32_t v)
{
    char key[96];
    arch_key(m, key, suffix);
    maker_u32(m, key, v);
}

void maker_arch_f32(struct maker *m, const char *suffix, float v)
{
    char key[96];
    arch_key(m, key, suffix);
    maker_f32(m, key, v);
}

static struct maker_tensor *add_layer_tensor(struct maker *m, uint32_t layer, const char *suffix, uint32_t type, uint64_t ne0,
                                             uint64_t ne1)
{
    char name[96];
    snprintf(name, sizeof name, "blk.%u.%s", layer, suffix);
    return maker_add_tensor(m, name, type, ne0, ne1);
}

static void add_expert_tensor(struct maker *m, uint32_t layer, const char *suffix, const struct maker_shape *s, uint64_t ne0,
                              uint64_t ne1)
{
    struct maker_tensor *t = add_layer_tensor(m, layer, suffix, s->type, ne0, ne1);
    t->n_dims = 3;
    t->ne[2] = s->n_experts;
}

static void add_mlp(struct maker *m, uint32_t i, const struct maker_shape *s)
{
    add_layer_tensor(m, i, "ffn_norm.weight", TENSOR_F32, s->n_embd, 1);
    if (!s->n_experts) {
        add_layer_tensor(m, i, "ffn_gate.weight", s->type, s->n_embd, s->n_ff);
        add_layer_tensor(m, i, "ffn_up.weight", s->type, s->n_embd, s->n_ff);
        add_layer_tensor(m, i, "ffn_down.weight", s->type, s->n_ff, s->n_embd);
        return;
    }
    add_layer_tensor(m, i, "ffn_gate_inp.weight", TENSOR_F32, s->n_embd, s->n_experts);
    add_expert_tensor(m, i, "ffn_gate_exps.weight", s, s->n_embd, s->n_ff_expert);
    add_expert_tensor(m, i, "ffn_up_exps.weight", s, s->n_embd, s->n_ff_expert);
    add_expert_tensor(m, i, "ffn_down_exps.weight", s, s->n_ff_expert, s->n_embd);
}

static void add_layer(struct maker *m, const char *arch, uint32_t i, const struct maker_shape *s)
{
    uint32_t head = s->n_embd / s->n_heads, kv = head * s->n_kv_heads, q = head * s->n_heads;
    add_layer_tensor(m, i, "attn_norm.weight", TENSOR_F32, s->n_embd, 1);
    add_layer_tensor(m, i, "attn_q.weight", s->type, s->n_embd, q);
    add_layer_tensor(m, i, "attn_k.weight", s->type, s->n_embd, kv);
    add_layer_tensor(m, i, "attn_v.weight", s->type, s->n_embd, kv);
    add_layer_tensor(m, i, "attn_output.weight", s->type, q, s->n_embd);
    if (strcmp(arch, "qwen2") == 0) {
        add_layer_tensor(m, i, "attn_q.bias", TENSOR_F32, q, 1);
        add_layer_tensor(m, i, "attn_k.bias", TENSOR_F32, kv, 1);
        add_layer_tensor(m, i, "attn_v.bias", TENSOR_F32, kv, 1);
    }
    if (strncmp(arch, "qwen3", 5) == 0 || strcmp(arch, "gemma3") == 0) {
        add_layer_tensor(m, i, "attn_q_norm.weight", TENSOR_F32, head, 1);
        add_layer_tensor(m, i, "attn_k_norm.weight", TENSOR_F32, head, 1);
    }
    if (strcmp(arch, "gemma3") == 0) {
        add_layer_tensor(m, i, "post_attention_norm.weight", TENSOR_F32, s->n_embd, 1);
        add_layer_tensor(m, i, "post_ffw_norm.weight", TENSOR_F32, s->n_embd, 1);
    }
    add_mlp(m, i, s);
}

void maker_model(struct maker *m, const char *arch, const struct maker_shape *s)
{
    maker_text(m, "general.architecture", arch);
    maker_arch_u32(m, "block_count", s->n_layers);
    maker_arch_u32(m, "context_length", 512);
    maker_arch_u32(m, "embedding_length", s->n_embd);
    maker_arch_u32(m, "feed_forward_length", s->n_ff);
    maker_arch_u32(m, "attention.head_count", s->n_heads);
    if (s->n_kv_heads != s->n_heads)
        maker_arch_u32(m, "attention.head_count_kv", s->n_kv_heads);
    maker_arch_f32(m, "attention.layer_norm_rms_epsilon", 1e-5f);
    if (strcmp(arch, "gemma3") == 0)
        maker_arch_u32(m, "attention.sliding_window", 32);
    if (s->n_experts) {
        maker_arch_u32(m, "expert_count", s->n_experts);
        maker_arch_u32(m, "expert_used_count", s->n_experts_used);
        maker_arch_u32(m, "expert_feed_forward_length", s->n_ff_expert);
    }
    maker_texts(m, "tokenizer.ggml.tokens", s->n_vocab);
    maker_add_tensor(m, "token_embd.weight", s->type, s->n_embd, s->n_vocab);
    maker_add_tensor(m, "output_norm.weight", TENSOR_F32, s->n_embd, 1);
    if (!s->tied)
        maker_add_tensor(m, "output.weight", s->type, s->n_embd, s->n_vocab);
    for (uint32_t i = 0; i < s->n_layers; i++)
        add_layer(m, arch, i, s);
}

void maker_llama(struct maker *m, const struct maker_shape *s)
{
    maker_model(m, "llama", s);
}

/* --- writing
 * ------------------------------------------------------------------------------------------------------------ */

static uint64_t tensor_bytes(const struct maker_tensor *t)
{
    const struct tensor_type_info *info = tensor_type_info(t->type);
    CHECK(info);
    return t->ne[0] / info->block_elements * info->block_bytes * t->ne[1] * t->ne[2] * t->ne[3];
}

static uint64_t aligned(uint64_t n, uint64_t alignment)
{
    return (n + alignment - 1) / alignment * alignment;
}

/* Places the tensors one behind the other and gives the bytes of the data section. */
static uint64_t place(struct maker *m)
{
    uint64_t end = 0, used = 0;
    for (uint32_t i = 0; i < m->n_tensors; i++) {
        struct maker_tensor *t = &m->tensors[i];
        if (!t->fixed) {
            t->offset = aligned(end, m->alignment);
            end = t->offset + tensor_bytes(t);
            used = end;
        }
    }
    return used;
}

static size_t table_bytes(const struct maker *m)
{
    size_t n = 24;
    for (uint32_t i = 0; i < m->n_keys; i++)
        n += 8 + strlen(m->keys[i].name) + 4 + m->keys[i].len;
    for (uint32_t i = 0; i < m->n_tensors; i++)
        n += 8 + strlen(m->tensors[i].name) + 4 + 8 * m->tensors[i].n_dims + 4 + 8;
    return n;
}

static size_t write_name(uint8_t *out, size_t at, const char *name)
{
    size_t n = strlen(name);
    put_u64(out + at, n);
    memcpy(out + at + 8, name, n);
    return at + 8 + n;
}

static size_t write_key(uint8_t *out, size_t at, struct maker_key *k)
{
    k->at = at;
    k->at_type = write_name(out, at, k->name);
    put_u32(out + k->at_type, k->type);
    k->at_value = k->at_type + 4;
    memcpy(out + k->at_value, k->value, k->len);
    return k->at_value + k->len;
}

static size_t write_tensor(uint8_t *out, size_t at, struct maker_tensor *t)
{
    t->at = at;
    t->at_n_dims = write_name(out, at, t->name);
    put_u32(out + t->at_n_dims, t->n_dims);
    t->at_ne = t->at_n_dims + 4;
    for (uint32_t d = 0; d < t->n_dims && d < 4; d++)
        put_u64(out + t->at_ne + 8 * d, t->ne[d]);
    t->at_type = t->at_ne + 8 * (size_t)t->n_dims;
    put_u32(out + t->at_type, t->type);
    t->at_offset = t->at_type + 4;
    put_u64(out + t->at_offset, t->offset);
    return t->at_offset + 8;
}

static void fill_ones(uint8_t *out, const struct maker_tensor *t)
{
    for (uint64_t i = 0; t->type == TENSOR_F32 && t->n_dims == 1 && i < t->ne[0]; i++)
        put_u32(out + t->at_data + 4 * i, 0x3f800000);
}

uint8_t *maker_write(struct maker *m, size_t *len)
{
    uint64_t data_bytes = place(m), data_at;
    size_t at = 24;
    m->table_end = table_bytes(m);
    data_at = aligned(m->table_end, m->alignment);
    *len = data_at + data_bytes;
    uint8_t *out = calloc(1, *len);
    CHECK(out);
    memcpy(out, "GGUF", 4);
    put_u32(out + 4, 3);
    put_u64(out + 8, m->n_tensors);
    put_u64(out + 16, m->n_keys);
    for (uint32_t i = 0; i < m->n_keys; i++)
        at = write_key(out, at, &m->keys[i]);
    for (uint32_t i = 0; i < m->n_tensors; i++) {
        struct maker_tensor *t = &m->tensors[i];
        at = write_tensor(out, at, t);
        t->at_data = data_at + t->offset;
        if (!t->fixed)
            fill_ones(out, t);
    }
    CHECK(at == m->table_end);
    return out;
}
