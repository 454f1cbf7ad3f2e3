/* common/model/tensor_type.h - the weight types that a GGUF file may name.
 *
 * Purpose    Ids, names and block sizes of every ggml type; nothing about how they are computed with (kernels/).
 * Threading  Pure.
 */
#ifndef SLUICE_COMMON_MODEL_TENSOR_TYPE_H
#define SLUICE_COMMON_MODEL_TENSOR_TYPE_H

#include <stdint.h>

/* X(name, id in the file, elements of a block, bytes of a block) */
#define TENSOR_TYPE_MAP(X)                                                                                             \
    X(F32, 0, 1, 4)                                                                                                    \
    X(F16, 1, 1, 2)                                                                                                    \
    X(Q4_0, 2, 32, 18)                                                                                                 \
    X(Q4_1, 3, 32, 20)                                                                                                 \
    X(Q5_0, 6, 32, 22)                                                                                                 \
    X(Q5_1, 7, 32, 24)                                                                                                 \
    X(Q8_0, 8, 32, 34)                                                                                                 \
    X(Q2_K, 10, 256, 84)                                                                                               \
    X(Q3_K, 11, 256, 110)                                                                                              \
    X(Q4_K, 12, 256, 144)                                                                                              \
    X(Q5_K, 13, 256, 176)                                                                                              \
    X(Q6_K, 14, 256, 210)                                                                                              \
    X(IQ2_XXS, 16, 256, 66)                                                                                            \
    X(IQ2_XS, 17, 256, 74)                                                                                             \
    X(IQ3_XXS, 18, 256, 98)                                                                                            \
    X(IQ1_S, 19, 256, 50)                                                                                              \
    X(IQ4_NL, 20, 32, 18)                                                                                              \
    X(IQ3_S, 21, 256, 110)                                                                                             \
    X(IQ2_S, 22, 256, 82)                                                                                              \
    X(IQ4_XS, 23, 256, 136)                                                                                            \
    X(I8, 24, 1, 1)                                                                                                    \
    X(I16, 25, 1, 2)                                                                                                   \
    X(I32, 26, 1, 4)                                                                                                   \
    X(I64, 27, 1, 8)                                                                                                   \
    X(F64, 28, 1, 8)                                                                                                   \
    X(IQ1_M, 29, 256, 56)                                                                                              \
    X(BF16, 30, 1, 2)                                                                                                  \
    X(TQ1_0, 34, 256, 54)                                                                                              \
    X(TQ2_0, 35, 256, 66)                                                                                              \
    X(MXFP4, 39, 32, 17)                                                                                               \
    X(NVFP4, 40, 64, 36)

enum tensor_type {
#define X(name, id, elements, bytes) TENSOR_##name = (id),
    TENSOR_TYPE_MAP(X)
#undef X
};

struct tensor_type_info {
    const char *name;
    uint32_t block_elements, block_bytes;
};

/* NULL: no such type. */
const struct tensor_type_info *tensor_type_info(uint32_t id);

#endif
