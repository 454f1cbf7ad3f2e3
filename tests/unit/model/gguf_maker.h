/* tests/unit/model/gguf_maker.h - GGUF files made in memory, right ones and wrong ones.
 *
 * Purpose    A test starts from a whole small model (maker_llama), changes keys or tensors, writes the bytes, and may then
 *            change single fields whose places the maker tells.
 * Ownership  maker_create/maker_destroy. What maker_write returns is the caller's to free.
 * Threading  One thread.
 * Errors     None: out of memory or room aborts the test.
 */
#ifndef SLUICE_TESTS_UNIT_MODEL_GGUF_MAKER_H
#define SLUICE_TESTS_UNIT_MODEL_GGUF_MAKER_H

#include <stddef.h>
#include <stdint.h>

struct maker_key {
    char name[96];
    uint32_t type;
    uint8_t *value; /* the bytes behind the type */
    size_t len;
    size_t at, at_type, at_value; /* of the last maker_write: name's length, type, value */
};

struct maker_tensor {
    char name[96];
    uint32_t type, n_dims;
    uint64_t ne[4];
    uint64_t offset; /* in the data section; set by maker_write unless fixed */
    int fixed;
    size_t at, at_n_dims, at_ne, at_type, at_offset, at_data; /* of the last maker_write; at: name's length */
};

struct maker {
    struct maker_key *keys;
    struct maker_tensor *tensors;
    uint32_t n_keys, n_tensors, max_keys, max_tensors;
    uint64_t alignment; /* of the data; 32 */
    size_t table_end;   /* of the last maker_write */
};

struct maker_shape {
    uint32_t n_layers, n_embd, n_heads, n_kv_heads, n_ff, n_vocab;
    uint32_t type; /* of the matrices */
    int tied;
    uint32_t n_experts, n_experts_used, n_ff_expert; /* n_experts 0: a dense MLP */
};

struct maker *maker_create(void);
void maker_destroy(struct maker *m);

/* A whole model of architecture llama with only the keys that have no default. */
void maker_llama(struct maker *m, const struct maker_shape *shape);

/* The same of another architecture that is supported: with its own tensors, keys and windows of 32 positions. */
void maker_model(struct maker *m, const char *arch, const struct maker_shape *shape);
/* Sets the key ARCH.suffix of the model's own architecture (general.architecture). */
void maker_arch_u32(struct maker *m, const char *suffix, uint32_t v);
void maker_arch_f32(struct maker *m, const char *suffix, float v);

/* A key of this name is replaced. */
void maker_u32(struct maker *m, const char *name, uint32_t v);
void maker_f32(struct maker *m, const char *name, float v);
void maker_bool(struct maker *m, const char *name, uint8_t v);
void maker_text(struct maker *m, const char *name, const char *v);
void maker_texts(struct maker *m, const char *name, uint64_t n); /* "t0", "t1", ... */
void maker_raw(struct maker *m, const char *name, uint32_t type, const void *value, size_t len);
/* Added even if there is one of this name. */
void maker_add_raw(struct maker *m, const char *name, uint32_t type, const void *value, size_t len);
void maker_drop(struct maker *m, const char *name);
struct maker_key *maker_key(struct maker *m, const char *name); /* aborts when absent */

struct maker_tensor *maker_add_tensor(struct maker *m, const char *name, uint32_t type, uint64_t ne0, uint64_t ne1);
void maker_drop_tensor(struct maker *m, const char *name);
struct maker_tensor *maker_tensor(struct maker *m, const char *name); /* aborts when absent */

/* The file. Data: zeros, but f32 vectors of ones. */
uint8_t *maker_write(struct maker *m, size_t *len);

void put_u32(uint8_t *at, uint32_t v);
void put_u64(uint8_t *at, uint64_t v);

#endif
