/* kernels/ops.h - the one contract between the model and the code that computes.
 *
 * Purpose    A table of operations with three backends of the same names: ref (scalar, obviously right), cpu (AVX2,
 *            AVX-VNNI, AVX-512 VNNI, AMX, portable C else) and cuda (later). ops_open chooses at start, by a probe that runs
 *            a self-check; callers never use #ifdef. Definitions of every result, to the bit, are those of
 *            docs/numerics.md (after prototypes/cpu_kernels/README.md); all backends and instruction sets give the same bits.
 * Ownership  Operations own nothing and allocate nothing: all memory is the caller's, sized by the *_bytes functions.
 * Threading  Every operation is called by all threads of a team with the same arguments and (thread, n_threads); it does
 *            its share and returns without waiting. Who reads another thread's share calls team_barrier first. An
 *            operation's result does not depend on n_threads.
 * Invariants Row-invariant: the values of a row depend on that row's inputs alone, whatever rows stand beside it.
 *            Default MXCSR (round to nearest, no FTZ, no DAZ) on every thread.
 * Errors     ops_open: STATUS_CONFIG. weight_prepare: STATUS_UNSUPPORTED naming the type, STATUS_BAD_MODEL for a bad
 *            shape. Operations cannot fail; NaN and Inf in a row stay in that row.
 *
 * All matrices are row-major f32 unless said otherwise; pointers to rows are 64-byte aligned and a row stride is its
 * length. "Share" partitions: rows in tiles of 16 (never a smaller cut), output columns in strips of 16.
 */
#ifndef SLUICE_KERNELS_OPS_H
#define SLUICE_KERNELS_OPS_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/error.h"
#include "common/model/tensor_type.h"

/* A weight matrix [n][k] (n outputs), in the layout of the backend that prepared it. */
struct weight {
    enum tensor_type type;
    uint32_t n, k;
    const uint8_t *file_rows; /* the n rows as in the file (mapped); embedding lookups and ref read them */
    uint8_t *packed;          /* strips of 16 outputs, 64-byte aligned; NULL where the backend reads file_rows */
};

/* Activations of one tick made ready for matrix products: f32 rows, and their int8 form for quantized weights. */
struct acts {
    uint32_t n_rows, k;   /* of the last acts_* call */
    uint32_t max_rows, max_k;
    float *x;             /* [n_rows][k] */
    uint8_t *int8;        /* backend's layout, acts_bytes */
};

/* One layer's view of the KV pool. Of block b, kv head h, K of position p (inside the block), dimension d is the f16 at
 *   pool + b*block_stride + layer_offset + h*head_stride + ((p/16)*head_dim + d)*32 + (p%16)*2
 * and V is at   ... + h*head_stride + block_positions*head_dim*2 + (p*head_dim + d)*2.
 * head_stride = 4*head_dim*block_positions; a layer takes n_kv_heads*head_stride bytes. */
struct kv_view {
    uint8_t *pool;
    size_t block_stride, layer_offset;
    uint32_t block_positions; /* 16, 32, 64, 128 */
    uint32_t n_kv_heads, head_dim;
};

/* Where a row stands: its sequence's block table and its position. Rows of one sequence that follow each other are
 * given in order; they share the blocks pointer. */
struct kv_row {
    const uint32_t *blocks;
    uint32_t position;
};

struct matmul_job {
    const struct weight *w;
    float *y;         /* [n_rows][y_stride]; columns 0..w->n-1 are written, every element exactly once */
    size_t y_stride;  /* in floats */
};

struct ops {
    const char *name; /* "ref", "cpu/avx2", ... */

    /* --- weights ------------------------------------------------------------------------------------------------- */
    /* Bytes of `packed` for a matrix (multiple of 64); 0 where the backend reads file rows. SIZE_MAX: unsupported type. Types
     * without a product of their own (block.h) are packed as F32. */
    size_t (*weight_bytes)(enum tensor_type type, uint32_t n, uint32_t k);
    /* Packs the strips that hold rows [row0, row1) (row0 a multiple of 16). w->packed zeroed before the first call. */
    void (*weight_pack)(struct weight *w, uint32_t row0, uint32_t row1);

    /* --- activations: write a->x and a->int8 (the latter only when int8 != 0), rows by tiles of 16 ------------------ */
    size_t (*acts_bytes)(uint32_t max_rows, uint32_t max_k);
    /* a->x = x. */
    void (*acts_rows)(struct acts *a, const float *x, uint32_t n_rows, uint32_t k, int int8, int thread, int n_threads);
    /* x += add (when add != NULL), then a->x = rmsnorm(x) * w. x [n_rows][k] is updated in place. */
    void (*acts_norm)(struct acts *a, float *x, const float *add, const float *w, float eps, uint32_t n_rows, uint32_t k,
                      int int8, int thread, int n_threads);
    /* a->x = gate_fn(gate) * up; gate and up [n_rows][k]. kind: enum gate_kind of common/model/hparams.h. Up to 16 rows are
     * shared out by columns, not rows: wait at a barrier on both sides. */
    void (*acts_gate)(struct acts *a, const float *gate, const float *up, int kind, uint32_t n_rows, uint32_t k, int int8,
                      int thread, int n_threads);

    /* --- products --------------------------------------------------------------------------------------------------- */
    /* All jobs read the same activations; the strips of all jobs together are shared out, so q, k, v are one call. */
    void (*matmul)(const struct matmul_job *jobs, int n_jobs, const struct acts *a, int thread, int n_threads);

    /* --- rows ------------------------------------------------------------------------------------------------------- */
    /* y[i] = dequantized row ids[i] of w (from file_rows), times scale. ids < w->n. */
    void (*embed)(const struct weight *w, const uint32_t *ids, uint32_t n_rows, float scale, float *y, int thread,
                  int n_threads);
    /* x += add. */
    void (*add)(float *x, const float *add, uint32_t n_rows, uint32_t k, int thread, int n_threads);
    /* x[r] += bias [k]. */
    void (*add_bias)(float *x, const float *bias, uint32_t n_rows, uint32_t k, int thread, int n_threads);
    /* RMSNorm of each head alone: x [n_rows][n_heads*head_dim] in place, w [head_dim]. */
    void (*head_norm)(float *x, const float *w, float eps, uint32_t n_rows, uint32_t n_heads, uint32_t head_dim, int thread,
                      int n_threads);
    /* x = rmsnorm(x) * w in place (post norms). */
    void (*norm)(float *x, const float *w, float eps, uint32_t n_rows, uint32_t k, int thread, int n_threads);
    /* x = cap * tanh(x / cap) in place (logits). Shared out by columns, as a product of one job with k outputs is: no
     * barrier between the two. */
    void (*softcap)(float *x, uint32_t n_rows, uint32_t k, float cap, int thread, int n_threads);

    /* --- rope --------------------------------------------------------------------------------------------------------- */
    /* cs[r][i] = {cos, sin} of (f32)positions[r] * freq[i] (one f32 product); i < n_rot/2. */
    void (*rope_angles)(const uint32_t *positions, uint32_t n_rows, const float *freq, uint32_t n_rot, float *cs, int thread,
                        int n_threads);
    /* Rotates in place; pairing: enum rope_pairing. Dimensions from n_rot on stay. */
    void (*rope)(float *x, const float *cs, uint32_t n_rows, uint32_t n_heads, uint32_t head_dim, uint32_t n_rot, int pairing,
                 int thread, int n_threads);

    /* --- attention ---------------------------------------------------------------------------------------------------- */
    /* Rounds k, v [n_rows][n_kv_heads*head_dim] to f16 and puts each row at its position. */
    void (*kv_store)(const struct kv_view *kv, const struct kv_row *rows, const float *k, const float *v, uint32_t n_rows,
                     int thread, int n_threads);
    /* out [n_rows][n_heads*head_dim]: causal attention of row r over positions max(0, position - window + 1)..position
     * (window 0: all). q is roped and unscaled; scores are multiplied by scale (usually 1/sqrt(head_dim)), then, unless
     * softcap is 0, become softcap * tanh(score / softcap). Walks tiles of 64 absolute positions whatever block_positions
     * is; never reads V beyond a row's own position. n_heads is a multiple of n_kv_heads, head_dim of 8. scratch:
     * attention_bytes per thread. */
    void (*attention)(const struct kv_view *kv, const struct kv_row *rows, const float *q, float *out, uint32_t n_rows,
                      uint32_t n_heads, float scale, uint32_t window, float softcap, uint8_t *scratch, int thread,
                      int n_threads);
    /* Scratch of the whole team. */
    size_t (*attention_bytes)(uint32_t max_rows, uint32_t n_heads, uint32_t head_dim, int n_threads);
};

/* backend: "auto", "ref", "cpu" ("cuda": STATUS_CONFIG, not built). isa: "auto", "portable", "avx2", "avxvnni", "avx512",
 * "amx"; one that this host lacks is STATUS_CONFIG with the reason. The table is static. */
enum status ops_open(const char *backend, const char *isa, const struct ops **out, struct error *err);
/* NULL when the host runs it, else why not ("the CPU does not report AVX-512 VNNI"). Runs the self-check once. */
const char *ops_isa_missing(const char *isa);
/* Names every kernel definition that results depend on: two profiles with equal text give equal bits. */
const char *ops_numerics_profile(void);

/* Checks type and shape (quantized: k a multiple of the type's block) and fills w without packing. */
enum status weight_prepare(const struct ops *ops, enum tensor_type type, uint32_t n, uint32_t k, const void *file_rows,
                           struct weight *w, struct error *err);
int weight_is_quantized(const struct weight *w); /* wants the int8 form of acts */

#endif
