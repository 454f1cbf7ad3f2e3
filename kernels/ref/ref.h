/* kernels/ref/ref.h - the scalar backend: every definition of docs/numerics.md written out, obviously right.
 *
 * Purpose    What the fast code is compared with, and the row operations of CPUs without any (cpu/portable). Reads weights
 *            as they stand in the file.
 * Threading  As ops.h.
 */
#ifndef SLUICE_KERNELS_REF_REF_H
#define SLUICE_KERNELS_REF_REF_H

#include "kernels/ops.h"

extern const struct ops ops_ref;

/* The int8 form of one block of 32 of a row: d, q and the sums of q's two halves. */
struct ref_block {
    int8_t q[32];
    float d;
    int32_t sum[2];
};
void ref_quantize_block(const float x[32], struct ref_block *out);

/* 1/sqrt(mean(x^2) + eps): squares summed in 16 lanes, one tree. */
float ref_rms_scale(const float *x, uint32_t k, float eps);
float ref_gate(int kind, float x);

void ref_embed(const struct weight *w, const uint32_t *ids, uint32_t n_rows, float scale, float *y, int thread,
               int n_threads);
void ref_add(float *x, const float *add, uint32_t n_rows, uint32_t k, int thread, int n_threads);
void ref_add_bias(float *x, const float *bias, uint32_t n_rows, uint32_t k, int thread, int n_threads);
void ref_head_norm(float *x, const float *w, float eps, uint32_t n_rows, uint32_t n_heads, uint32_t head_dim, int thread,
                   int n_threads);
void ref_norm(float *x, const float *w, float eps, uint32_t n_rows, uint32_t k, int thread, int n_threads);
void ref_softcap(float *x, uint32_t n_rows, uint32_t k, float cap, int thread, int n_threads);
void ref_rope_angles(const uint32_t *positions, uint32_t n_rows, const float *freq, uint32_t n_rot, float *cs, int thread,
                     int n_threads);
void ref_rope(float *x, const float *cs, uint32_t n_rows, uint32_t n_heads, uint32_t head_dim, uint32_t n_rot, int pairing,
              int thread, int n_threads);
void ref_kv_store(const struct kv_view *kv, const struct kv_row *rows, const float *k, const float *v, uint32_t n_rows,
                  int thread, int n_threads);
void ref_attention(const struct kv_view *kv, const struct kv_row *rows, const float *q, float *out, uint32_t n_rows,
                   uint32_t n_heads, float scale, uint32_t window, float softcap, uint8_t *scratch, int thread,
                   int n_threads);
size_t ref_attention_bytes(uint32_t max_rows, uint32_t n_heads, uint32_t head_dim, int n_threads);

#endif
