/* tests/lib/models.h - the model files that tests run over.
 *
 * Purpose    One list of the tiny models of tests/vectors/tiny that load, for every test that promises something of all models,
 *            and the names under which real models are found.
 * Ownership  Static.
 * Threading  Pure.
 */
#ifndef SLUICE_TESTS_LIB_MODELS_H
#define SLUICE_TESTS_LIB_MODELS_H

#include <stddef.h>
#include <stdint.h>

/* What the products with its weights take in: decides what reference it is held to. */
enum tiny_products {
    TINY_FLOAT, /* float32: F32, F16, BF16, and types that are decoded to F32 at load */
    TINY_INT8,  /* int8 in blocks of 32; there is an int8 reference of the same blocks */
    TINY_INT8_K /* int8 in blocks of 32; the int8 reference has blocks of 256, so only the float reference says something */
};

struct tiny_model {
    const char *name;
    enum tiny_products products;
    int fast; /* 1: in the fast tier; the others from the full tier on */
};

extern const struct tiny_model tiny_models[];
extern const uint32_t n_tiny_models;

/* Which part of the list a program that was started with these arguments runs over: `full` is all that the fast tier leaves. */
int tiny_is_chosen(const struct tiny_model *m, int argc, char **argv);
void tiny_path(const char *name, char *out, size_t size);

/* Of the file, which must open: the test fails else. */
void models_read_sizes(const char *path, uint32_t *n_layers, uint32_t *n_vocab);

/* smollm2, qwen2.5, gemma3: the file's path, or NULL with the reason printed (the test exits 77). */
const char *real_model_path(const char *name);

#endif
