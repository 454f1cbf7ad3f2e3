/* tests/fuzz/fuzz_split.c - `--split`: where the stages of a model begin.
 *
 * Input      1 byte which model, 1 byte number of stages, then the text, up to its first 0.
 * Must hold  It is refused with a reason, or every stage has a layer and they have all of them together. A list that is taken names
 *            the first layers and nothing else, and any cut, written as a list, is read as the same cut. The best cut is found for
 *            every number of stages that has one.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/check.h"
#include "common/model/split.h"
#include "tests/unit/model/gguf_maker.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_TEXT = 512 };

static const uint32_t n_layers[] = {1, 2, 7, 70};
static struct model models[ARRAY_LEN(n_layers)];

static void make_models(void)
{
    for (size_t i = 0; i < ARRAY_LEN(n_layers); i++) {
        const struct maker_shape shape = {.n_layers = n_layers[i], .n_embd = 32, .n_heads = 1, .n_kv_heads = 1, .n_ff = 32, .n_vocab = 40};
        struct maker *m = maker_create();
        struct gguf *g;
        size_t len;
        maker_llama(m, &shape);
        const uint8_t *bytes = maker_write(m, &len);
        maker_destroy(m);
        CHECK(gguf_open_memory(bytes, len, &g, NULL) == STATUS_OK && model_from_gguf(g, "m", &models[i], NULL) == STATUS_OK);
    }
}

static int is_auto(const char *spec)
{
    return !spec[0] || strcmp(spec, "auto") == 0;
}

static void print_list(const struct split *s, char *out, size_t size)
{
    size_t at = 0;
    out[0] = 0;
    for (uint32_t i = 1; i < s->n_stages; i++)
        at += (size_t)snprintf(out + at, size - at, "%s%u", i > 1 ? "," : "", s->first_layer[i]);
}

/* The list without the zeros in front of its numbers. */
static void drop_zeros(const char *spec, char *out)
{
    for (const char *p = spec; *p; p++) {
        const int begins = p == spec || p[-1] == ',';
        while (begins && p[0] == '0' && p[1] >= '0' && p[1] <= '9')
            p++;
        *out++ = *p;
    }
    *out = 0;
}

static void check_split(const struct model *m, uint32_t n_stages, const char *spec, const struct split *s)
{
    char list[MAX_TEXT], asked[MAX_TEXT + 1];
    struct split again;
    CHECK(s->n_stages == n_stages && s->first_layer[0] == 0 && s->first_layer[n_stages] == m->hp.n_layers);
    for (uint32_t i = 0; i < n_stages; i++)
        CHECK(s->first_layer[i] < s->first_layer[i + 1]);
    print_list(s, list, sizeof list);
    if (!is_auto(spec)) {
        drop_zeros(spec, asked);
        CHECK(strcmp(asked, list) == 0);
    }
    if (n_stages == 1)
        return; /* no list has no numbers */
    CHECK(split_plan(m, n_stages, list, &again, NULL) == STATUS_OK);
    CHECK(memcmp(again.first_layer, s->first_layer, (n_stages + 1) * sizeof *s->first_layer) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char spec[MAX_TEXT + 1];
    struct split s;
    struct error err = {0};
    if (size < 2 || size - 2 > MAX_TEXT)
        return 0;
    if (!models[0].gguf)
        make_models();
    const struct model *m = &models[data[0] % ARRAY_LEN(models)];
    const uint32_t n_stages = data[1] % (MAX_STAGES + 3);
    memcpy(spec, data + 2, size - 2);
    spec[size - 2] = 0;
    const enum status st = split_plan(m, n_stages, spec, &s, &err);
    CHECK(st == STATUS_OK || (st == STATUS_CONFIG && err.status == st && (strstr(err.message, "--split '") || strstr(err.message, " stages"))));
    if (st == STATUS_OK)
        check_split(m, n_stages, spec, &s);
    else
        CHECK(!is_auto(spec) || n_stages < 1 || n_stages > MAX_STAGES || n_stages > m->hp.n_layers);
    return 0;
}
