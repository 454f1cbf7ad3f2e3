#include "tests/lib/models.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/check.h"
#include "common/model/hparams.h"

const struct tiny_model tiny_models[] = {
    {"llama-f32", TINY_FLOAT, 1},      {"llama-tied-f32", TINY_FLOAT, 1}, {"llama-rope3-f32", TINY_FLOAT, 1},
    {"llama-f16", TINY_FLOAT, 1},      {"llama-bf16", TINY_FLOAT, 1},     {"llama-q4_0", TINY_INT8, 1},
    {"llama-q4_1", TINY_INT8, 1},      {"llama-q5_0", TINY_INT8, 1},      {"llama-q5_1", TINY_INT8, 1},
    {"llama-q8_0", TINY_INT8, 1},      {"llama-q4_k", TINY_INT8_K, 1},    {"llama-q5_k", TINY_INT8_K, 1},
    {"llama-q6_k", TINY_INT8_K, 1},    {"mixtral-f32", TINY_FLOAT, 1},    {"qwen2-f32", TINY_FLOAT, 1},
    {"qwen3-f32", TINY_FLOAT, 1},      {"gemma3-f32", TINY_FLOAT, 1},     {"qwen3moe-f32", TINY_FLOAT, 1},
    {"qwen2-q4_k_m", TINY_INT8_K, 0},  {"qwen3-q4_0", TINY_INT8, 0},      {"gemma3-q8_0", TINY_INT8, 0},
    {"qwen3moe-q8_0", TINY_INT8, 0},   {"qwen3moe-q4_k", TINY_INT8_K, 0}, {"llama-q2_k", TINY_FLOAT, 0},
    {"llama-q3_k", TINY_FLOAT, 0},     {"llama-iq1_m", TINY_FLOAT, 0},    {"llama-iq1_s", TINY_FLOAT, 0},
    {"llama-iq2_s", TINY_FLOAT, 0},    {"llama-iq2_xs", TINY_FLOAT, 0},   {"llama-iq2_xxs", TINY_FLOAT, 0},
    {"llama-iq3_s", TINY_FLOAT, 0},    {"llama-iq3_xxs", TINY_FLOAT, 0},  {"llama-iq4_nl", TINY_FLOAT, 0},
    {"llama-iq4_xs", TINY_FLOAT, 0},   {"llama-mxfp4", TINY_FLOAT, 0},    {"llama-tq1_0", TINY_FLOAT, 0},
    {"llama-tq2_0", TINY_FLOAT, 0},
};
const uint32_t n_tiny_models = ARRAY_LEN(tiny_models);

static const struct {
    const char *name, *variable;
} real_models[] = {
    {"smollm2", "SLUICE_MODEL_SMOLLM2"},
    {"qwen2.5", "SLUICE_MODEL_QWEN"},
    {"gemma3", "SLUICE_MODEL_GEMMA"},
};

int tiny_is_chosen(const struct tiny_model *m, int argc, char **argv)
{
    return m->fast != (argc > 1 && strcmp(argv[1], "full") == 0);
}

void tiny_path(const char *name, char *out, size_t size)
{
    snprintf(out, size, "%s/tiny/%s.gguf", SLUICE_VECTORS, name);
}

void models_read_sizes(const char *path, uint32_t *n_layers, uint32_t *n_vocab)
{
    struct model m;
    struct error err = {0};
    if (model_open(path, &m, &err) != STATUS_OK)
        fail_msg("%s", err.message);
    *n_layers = m.hp.n_layers;
    *n_vocab = m.hp.n_vocab;
    model_close(&m);
}

const char *real_model_path(const char *name)
{
    for (size_t i = 0; i < ARRAY_LEN(real_models); i++)
        if (strcmp(real_models[i].name, name) == 0) {
            const char *path = getenv(real_models[i].variable);
            if (!path)
                printf("skipped: %s does not name the model file\n", real_models[i].variable);
            return path;
        }
    printf("%s is no real model\n", name);
    exit(2);
}
