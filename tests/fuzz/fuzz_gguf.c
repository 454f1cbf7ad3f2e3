/* tests/fuzz/fuzz_gguf.c - a model file of arbitrary bytes, read with all that reads one.
 *
 * The seeds in corpus/gguf were made by make_gguf_seeds.py. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/check.h"
#include "common/model/gguf.h"
#include "common/model/hparams.h"
#include "common/model/split.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const keys[] = {
    "general.architecture",
    "general.name",
    "general.alignment",
    "llama.block_count",
    "llama.rope.freq_base",
    "tokenizer.ggml.tokens",
    "tokenizer.ggml.scores",
    "tokenizer.ggml.token_type",
    "tokenizer.ggml.pre",
    "tokenizer.chat_template",
    "tokenizer.ggml.add_bos_token",
    "k",
    "",
};

static volatile uint64_t sink;

/* Touches the first and the last byte of what a text or tensor claims. */
static void touch(const void *p, uint64_t n)
{
    const uint8_t *bytes = p;
    if (n)
        sink += bytes[0] + bytes[n - 1];
}

static void read_arrays(const struct gguf *g, const char *key)
{
    enum { MAX_READ = 4096 };
    static struct text texts[MAX_READ];
    static float floats[MAX_READ];
    static int64_t ints[MAX_READ];
    uint64_t n;
    if (gguf_array_texts(g, key, &n)) {
        n = n < MAX_READ ? n : MAX_READ;
        CHECK(gguf_read_texts(g, key, texts, n) == STATUS_OK);
        for (uint64_t i = 0; i < n; i++)
            touch(texts[i].data, texts[i].len);
    }
    if (gguf_array_f32(g, key, &n))
        CHECK(gguf_read_f32(g, key, floats, n < MAX_READ ? n : MAX_READ) == STATUS_OK);
    if (gguf_array_ints(g, key, &n))
        gguf_read_i64(g, key, ints, n < MAX_READ ? n : MAX_READ); /* refuses values above INT64_MAX */
}

static void read_keys(const struct gguf *g)
{
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        uint64_t u;
        double f;
        int b;
        struct text t;
        int n_kinds = gguf_u64(g, keys[i], &u) + gguf_f64(g, keys[i], &f) + gguf_bool(g, keys[i], &b);
        if (gguf_text(g, keys[i], &t)) {
            touch(t.data, t.len);
            n_kinds++;
        }
        n_kinds += gguf_array_texts(g, keys[i], &u) + gguf_array_f32(g, keys[i], &u) + gguf_array_ints(g, keys[i], &u);
        CHECK(n_kinds <= gguf_has(g, keys[i])); /* one value has one kind */
        read_arrays(g, keys[i]);
    }
}

static void read_tensors(const struct gguf *g, const uint8_t *data, size_t size)
{
    for (uint32_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor(g, i);
        char name[128];
        CHECK(t->n_dims >= 1 && t->n_dims <= 4 && tensor_type_info(t->type));
        CHECK(t->bytes <= size && t->file_offset <= size - t->bytes && t->data == data + t->file_offset);
        touch(t->data, t->bytes);
        touch(t->name.data, t->name.len);
        if (t->name.len < sizeof name && !memchr(t->name.data, 0, t->name.len)) {
            memcpy(name, t->name.data, t->name.len);
            name[t->name.len] = 0;
            CHECK(gguf_find_tensor(g, name) == t);
        }
    }
}

static void read_split(const struct model *m, uint32_t n_stages)
{
    struct split s;
    if (split_plan(m, n_stages, "auto", &s, NULL) != STATUS_OK)
        return;
    CHECK(s.first_layer[0] == 0 && s.first_layer[n_stages] == m->hp.n_layers);
    for (uint32_t i = 0; i < n_stages; i++)
        CHECK(s.first_layer[i] < s.first_layer[i + 1]);
}

static void read_model(const struct model *m)
{
    const struct gguf_tensor *t[N_LAYER_TENSORS], *norm, *head, *embd;
    CHECK(model_embedding(m, &embd, NULL) == STATUS_OK && model_head(m, &norm, &head, NULL) == STATUS_OK);
    CHECK((head == embd) == m->hp.tied_head);
    for (uint32_t i = 0; i < m->hp.n_layers; i++) {
        CHECK(model_layer(m, i, t, NULL) == STATUS_OK);
        CHECK(t[LAYER_ATTN_Q]->ne[1] == (uint64_t)m->hp.n_heads * m->hp.head_dim);
    }
    CHECK(strlen(m->name) < sizeof m->name);
    for (uint32_t n_stages = 1; n_stages <= 4; n_stages++)
        read_split(m, n_stages);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct gguf *g;
    struct model m;
    struct error err = {0};
    if (gguf_open_memory(data, size, &g, &err) != STATUS_OK) {
        CHECK(strstr(err.message, " at byte "));
        return 0;
    }
    read_keys(g);
    read_tensors(g, data, size);
    if (model_from_gguf(g, "fuzz.gguf", &m, &err) != STATUS_OK) {
        CHECK(err.status == STATUS_BAD_MODEL && err.message[0]);
        gguf_close(g);
        return 0;
    }
    read_model(&m);
    model_close(&m);
    return 0;
}
