/* kernels/cpu/isa.h - the functions that rows.c and attention.c define for each vector width. Threading: as ops.h. */
#ifndef SLUICE_KERNELS_CPU_ISA_H
#define SLUICE_KERNELS_CPU_ISA_H

#include "kernels/ops.h"

#define CPU_ISA_DECLARE(isa)                                                                                           \
    void acts_rows_##isa(struct acts *a, const float *x, uint32_t n_rows, uint32_t k, int int8, int thread,            \
                         int n_threads);                                                                               \
    void acts_norm_##isa(struct acts *a, float *x, const float *add, const float *w, float eps, uint32_t n_rows,       \
                         uint32_t k, int int8, int thread, int n_threads);                                             \
    void acts_gate_##isa(struct acts *a, const float *gate, const float *up, int kind, uint32_t n_rows, uint32_t k,    \
                         int int8, int thread, int n_threads);                                                         \
    void rows_add_##isa(float *x, const float *add, uint32_t n_rows, uint32_t k, int thread, int n_threads);           \
    void rows_add_bias_##isa(float *x, const float *bias, uint32_t n_rows, uint32_t k, int thread, int n_threads);     \
    void rows_head_norm_##isa(float *x, const float *w, float eps, uint32_t n_rows, uint32_t n_heads,                  \
                              uint32_t head_dim, int thread, int n_threads);                                           \
    void rows_norm_##isa(float *x, const float *w, float eps, uint32_t n_rows, uint32_t k, int thread, int n_threads); \
    void rows_softcap_##isa(float *x, uint32_t n_rows, uint32_t k, float cap, int thread, int n_threads);              \
    void rows_rope_##isa(float *x, const float *cs, uint32_t n_rows, uint32_t n_heads, uint32_t head_dim,              \
                         uint32_t n_rot, int pairing, int thread, int n_threads);                                      \
    void kv_store_##isa(const struct kv_view *kv, const struct kv_row *rows, const float *k, const float *v,           \
                        uint32_t n_rows, int thread, int n_threads);                                                   \
    void attention_##isa(const struct kv_view *kv, const struct kv_row *rows, const float *q, float *out,              \
                         uint32_t n_rows, uint32_t n_heads, float scale, uint32_t window, float softcap,               \
                         uint8_t *scratch, int thread, int n_threads);                                                 \
    size_t attention_bytes_##isa(uint32_t max_rows, uint32_t n_heads, uint32_t head_dim, int n_threads);

CPU_ISA_DECLARE(avx2)
CPU_ISA_DECLARE(avx512)

#endif
