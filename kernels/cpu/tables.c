/* The tables of the x86-64 instruction sets. Only names: nothing here runs before ops.c has probed the CPU. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/mul.h"
#include "kernels/ref/ref.h"

#define CPU_TABLE(isa, rows_isa, mul, mul_float)                                                                       \
    static void matmul_##isa(const struct matmul_job *jobs, int n_jobs, const struct acts *a, int thread,              \
                             int n_threads)                                                                            \
    {                                                                                                                  \
        matmul_drive(mul, mul_float, jobs, n_jobs, a, thread, n_threads);                                              \
    }                                                                                                                  \
    const struct ops ops_cpu_##isa = {                                                                                 \
        .name = "cpu/" #isa,                                                                                           \
        .weight_bytes = pack_weight_bytes,                                                                             \
        .weight_pack = pack_weight,                                                                                    \
        .acts_bytes = acts_int8_bytes,                                                                                 \
        .acts_rows = acts_rows_##rows_isa,                                                                             \
        .acts_norm = acts_norm_##rows_isa,                                                                             \
        .acts_gate = acts_gate_##rows_isa,                                                                             \
        .matmul = matmul_##isa,                                                                                        \
        .embed = ref_embed,                                                                                            \
        .add = rows_add_##rows_isa,                                                                                    \
        .add_bias = rows_add_bias_##rows_isa,                                                                          \
        .head_norm = rows_head_norm_##rows_isa,                                                                        \
        .norm = rows_norm_##rows_isa,                                                                                  \
        .softcap = rows_softcap_##rows_isa,                                                                            \
        .rope_angles = ref_rope_angles,                                                                                \
        .rope = rows_rope_##rows_isa,                                                                                  \
        .kv_store = kv_store_##rows_isa,                                                                               \
        .attention = attention_##rows_isa,                                                                             \
        .attention_bytes = attention_bytes_##rows_isa,                                                                 \
    };

CPU_TABLE(avx2, avx2, mul_avx2, mul_float_avx2)
CPU_TABLE(avxvnni, avx2, mul_avxvnni, mul_float_avx2)
CPU_TABLE(avx512, avx512, mul_avx512, mul_float_avx512)
CPU_TABLE(amx, avx512, mul_amx, mul_float_avx512)
