/* common/model/gguf.h - a GGUF file, mapped and checked.
 *
 * Purpose    Opens a GGUF (version 2 or 3, little-endian) by mmap and gives its metadata and tensors. Every number of the
 *            file is checked against the file's size and the numbers it is combined with before it is used, so nothing
 *            that is returned points outside the mapping. It knows no model: hparams.h does.
 *            The file stays open, so that one that is written to meanwhile can be told.
 * Ownership  gguf_open/gguf_close. All pointers returned live until gguf_close. Strings are not 0-terminated: struct text.
 * Threading  Open and close on one thread; everything else is read-only and may be called from any.
 * Invariants 1. data of every tensor lies inside the file, aligned to general.alignment; no two tensors overlap, and
 *               no more than padding lies between them and behind the last.
 *            2. Names of tensors and keys are unique.
 *            3. Memory used besides the mapping is bounded by 128 bytes for each key and tensor that the file really
 *               holds, and by 16 MiB.
 * Errors     STATUS_BAD_MODEL (names the field and the byte offset), STATUS_IO, STATUS_OUT_OF_MEMORY.
 */
#ifndef SLUICE_COMMON_MODEL_GGUF_H
#define SLUICE_COMMON_MODEL_GGUF_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/error.h"
#include "common/model/tensor_type.h"

struct text {
    const char *data;
    size_t len;
};

/* A text of a file as one can show it: unprintable bytes as '?', cut to what fits. Use: gguf_printable(t).text. */
struct printable {
    char text[96];
};
struct printable gguf_printable(struct text t);

struct gguf_tensor {
    struct text name;
    enum tensor_type type;
    uint32_t n_dims;    /* 1..4 */
    uint64_t ne[4];     /* elements; ne[0] runs fastest: a matrix [N rows][K] has ne = {K, N, 1, 1} */
    uint64_t bytes;
    uint64_t file_offset;
    const uint8_t *data;
};

struct gguf;

enum status gguf_open(const char *path, struct gguf **out, struct error *err);
/* The same over memory that the caller keeps alive (tests, fuzzing). */
enum status gguf_open_memory(const void *data, size_t len, struct gguf **out, struct error *err);
void gguf_close(struct gguf *g);

/* STATUS_BAD_MODEL: the file was written to since it was opened, so what was read of it is a mixture. One system call. A file
 * that was renamed, deleted or replaced by another of its name is still the one that is mapped. */
enum status gguf_check_unchanged(const struct gguf *g, struct error *err);

uint64_t gguf_file_bytes(const struct gguf *g);
uint32_t gguf_n_tensors(const struct gguf *g);
const struct gguf_tensor *gguf_tensor(const struct gguf *g, uint32_t index);
const struct gguf_tensor *gguf_find_tensor(const struct gguf *g, const char *name); /* NULL: absent */
uint32_t gguf_n_keys(const struct gguf *g);

/* Metadata. Found: 1 and *out written. Absent or of another type: 0 and *out untouched. Integers of any width that fit
 * are accepted by gguf_u64; gguf_f64 takes any float. */
int gguf_u64(const struct gguf *g, const char *key, uint64_t *out);
int gguf_f64(const struct gguf *g, const char *key, double *out);
int gguf_bool(const struct gguf *g, const char *key, int *out);
int gguf_text(const struct gguf *g, const char *key, struct text *out);
int gguf_has(const struct gguf *g, const char *key);

/* Arrays. gguf_array_X: 1 and *n elements if the key is there as an array of that kind (f32: f64 too; ints: any width,
 * and bool). gguf_read_X: the first n of them, STATUS_BAD_MODEL if there are fewer or one does not fit. */
int gguf_array_texts(const struct gguf *g, const char *key, uint64_t *n);
enum status gguf_read_texts(const struct gguf *g, const char *key, struct text *out /* [n] */, uint64_t n);
int gguf_array_f32(const struct gguf *g, const char *key, uint64_t *n);
enum status gguf_read_f32(const struct gguf *g, const char *key, float *out /* [n] */, uint64_t n);
int gguf_array_ints(const struct gguf *g, const char *key, uint64_t *n);
enum status gguf_read_i64(const struct gguf *g, const char *key, int64_t *out /* [n] */, uint64_t n);

/* SHA-256 over header, tensor table, file size, and first and last 4 KiB of every tensor (design.md). */
void gguf_hash(const struct gguf *g, uint8_t out[32]);

#endif
