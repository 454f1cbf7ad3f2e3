#include "kernels/probe.h"

#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/base/rand.h"
#include "common/model/hparams.h"
#include "kernels/block.h"
#include "kernels/math.h"
#include "kernels/ref/ref.h"

#if defined(__x86_64__)
#include <cpuid.h>

enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_TILE_DATA = 18 };
enum { XCR0_AVX = 0x6, XCR0_AVX512 = 0xe6, XCR0_TILES = 0x60000 };

static uint64_t xcr0(void)
{
    uint32_t a, d;
    __asm__ volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
    return (uint64_t)d << 32 | a;
}

struct cpuid_words {
    uint32_t ecx1, ebx7, ecx7, edx7, eax7_1;
};

static struct cpuid_words cpuid_read(void)
{
    struct cpuid_words w = {0};
    uint32_t a, b, c, d;
    if (__get_cpuid(1, &a, &b, &c, &d))
        w.ecx1 = c;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
        w.ebx7 = b;
        w.ecx7 = c;
        w.edx7 = d;
        if (a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d))
            w.eax7_1 = a;
    }
    return w;
}

#define BIT(word, n) ((word) >> (n) & 1)

static const char *avx2_missing(const struct cpuid_words *w)
{
    if (!BIT(w->ecx1, 27) || (xcr0() & XCR0_AVX) != XCR0_AVX)
        return "the system does not save the AVX registers";
    if (!BIT(w->ebx7, 5) || !BIT(w->ecx1, 12) || !BIT(w->ecx1, 29))
        return "the CPU does not report AVX2, FMA and F16C";
    return NULL;
}

static const char *avx512_missing(const struct cpuid_words *w)
{
    const uint32_t f_dq_bw_vl = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;
    const char *why = avx2_missing(w);
    if (why)
        return why;
    if ((w->ebx7 & f_dq_bw_vl) != f_dq_bw_vl || !BIT(w->ebx7, 8))
        return "the CPU does not report AVX-512 F, DQ, BW, VL and BMI2";
    if (!BIT(w->ecx7, 11))
        return "the CPU does not report AVX-512 VNNI";
    if ((xcr0() & XCR0_AVX512) != XCR0_AVX512)
        return "the system does not save the AVX-512 registers";
    return NULL;
}

static const char *amx_missing(const struct cpuid_words *w)
{
    const char *why = avx512_missing(w);
    if (why)
        return why;
    if (!BIT(w->edx7, 24) || !BIT(w->edx7, 25))
        return "the CPU does not report AMX TILE and INT8";
    if ((xcr0() & XCR0_TILES) != XCR0_TILES)
        return "the system does not save the AMX tiles";
    if (syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_TILE_DATA))
        return "the system does not give this process the AMX tiles";
    return NULL;
}

const char *probe_cpu(enum probe_isa isa)
{
    struct cpuid_words w = cpuid_read();
    switch (isa) {
    case PROBE_AVX2:
        return avx2_missing(&w);
    case PROBE_AVXVNNI:
        return avx2_missing(&w) ? avx2_missing(&w) : BIT(w.eax7_1, 4) ? NULL : "the CPU does not report AVX-VNNI";
    case PROBE_AVX512:
        return avx512_missing(&w);
    case PROBE_AMX:
        return amx_missing(&w);
    default:
        return NULL;
    }
}
#else
const char *probe_cpu(enum probe_isa isa)
{
    return isa == PROBE_PORTABLE ? NULL : "this CPU is not an x86-64";
}
#endif

/* --- self-check ------------------------------------------------------------------------------------------------- */

enum { N = 40, K = 256, ROWS = 17, HEAD_DIM = 64, POSITIONS = 80 };

static sigjmp_buf escape;

static void on_sigill(int sig)
{
    (void)sig;
    siglongjmp(escape, 1);
}

/* Random bytes whose scales are ordinary halves, so that no result is infinite. */
static void fill_blocks(enum tensor_type type, uint8_t *p, size_t bytes)
{
    uint32_t elements, size;
    block_size(type, &elements, &size);
    for (size_t i = 0; i < bytes; i++)
        p[i] = (uint8_t)rand_at((uint64_t)type, i);
    for (size_t b = 0; b + size <= bytes && elements > 1; b += size) {
        uint16_t d = math_to_f16(rand_unit(1, b) - 0.5f), m = math_to_f16(rand_unit(2, b) - 0.5f);
        memcpy(p + b + (type == TENSOR_Q6_K ? 208 : 0), &d, 2);
        if (block_traits(type)->has_min)
            memcpy(p + b + 2, &m, 2);
    }
    if (type == TENSOR_F32)
        for (size_t i = 0; i < bytes / 4; i++) {
            float v = rand_unit(3, i) - 0.5f;
            memcpy(p + 4 * i, &v, 4);
        }
}

static void *room(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 127) / 64 * 64);
    if (p)
        memset(p, 0, (bytes + 127) / 64 * 64);
    return p;
}

/* Runs one product, from quantizing to y; 0 when memory ran out. */
static int product(const struct ops *ops, enum tensor_type type, const uint8_t *file, const float *x, float *y)
{
    struct weight w = {.type = type, .n = N, .k = K, .file_rows = file};
    struct acts a = {.max_rows = ROWS, .max_k = K, .x = room(4 * ROWS * K), .int8 = room(ops->acts_bytes(ROWS, K))};
    w.packed = room(ops->weight_bytes(type, N, K));
    int ok = a.x && a.int8 && w.packed;
    if (ok) {
        ops->weight_pack(&w, 0, N);
        ops->acts_rows(&a, x, ROWS, K, 1, 0, 1);
        ops->matmul(&(struct matmul_job){.w = &w, .y = y, .y_stride = N}, 1, &a, 0, 1);
    }
    free(a.x);
    free(a.int8);
    free(w.packed);
    return ok;
}

static int attention(const struct ops *ops, const float *x, uint8_t *pool, float *out)
{
    static const uint32_t blocks[] = {1, 0, 2, 3, 4};
    struct kv_view kv = {pool, 4 * HEAD_DIM * 16, 0, 16, 1, HEAD_DIM};
    struct kv_row rows[POSITIONS];
    for (uint32_t r = 0; r < POSITIONS; r++)
        rows[r] = (struct kv_row){blocks, r};
    uint8_t *scratch = room(ops->attention_bytes(POSITIONS, 1, HEAD_DIM, 1));
    if (!scratch)
        return 0;
    ops->kv_store(&kv, rows, x, x + HEAD_DIM, POSITIONS, 0, 1);
    ops->attention(&kv, rows, x, out, POSITIONS, 1, 0.125f, 0, 2.f, scratch, 0, 1);
    free(scratch);
    return 1;
}

struct check {
    float x[(POSITIONS + 1) * HEAD_DIM], y[2][(POSITIONS + 1) * HEAD_DIM];
    uint8_t file[4 * N * K], pool[5 * 4 * HEAD_DIM * 16];
};

static const char *compare(const struct ops *ops, struct check *c)
{
    static const enum tensor_type types[] = {
#define X(name, offset, min, scales) TENSOR_##name,
        BLOCK_QUANT_MAP(X)
#undef X
            TENSOR_F32, TENSOR_F16};
    for (size_t i = 0; i < sizeof c->x / sizeof c->x[0]; i++)
        c->x[i] = 4 * rand_unit(7, i) - 2;
    for (size_t t = 0; t < sizeof types / sizeof types[0]; t++) {
        fill_blocks(types[t], c->file, N * block_row_bytes(types[t], K));
        if (!product(&ops_ref, types[t], c->file, c->x, c->y[0]) || !product(ops, types[t], c->file, c->x, c->y[1]))
            return "no memory for its self-check";
        for (size_t i = 0; i < ROWS * N; i++) /* random halves may be NaN: then both are */
            if (math_bits(c->y[0][i]) != math_bits(c->y[1][i]) && !(c->y[0][i] != c->y[0][i] && c->y[1][i] != c->y[1][i]))
                return "its products differ from the scalar reference";
    }
    if (!attention(&ops_ref, c->x, c->pool, c->y[0]) || !attention(ops, c->x, c->pool, c->y[1]))
        return "no memory for its self-check";
    if (memcmp(c->y[0], c->y[1], 4 * POSITIONS * HEAD_DIM) != 0)
        return "its attention differs from the scalar reference";
    ops_ref.norm(c->y[0], c->x, 1e-5f, POSITIONS, HEAD_DIM, 0, 1);
    ops->norm(c->y[1], c->x, 1e-5f, POSITIONS, HEAD_DIM, 0, 1);
    return memcmp(c->y[0], c->y[1], 4 * POSITIONS * HEAD_DIM) ? "its norm differs from the scalar reference" : NULL;
}

const char *probe_self_check(const struct ops *ops)
{
    struct check *c = room(sizeof *c);
    if (!c)
        return "no memory for its self-check";
    struct sigaction trap = {.sa_handler = on_sigill}, before;
    const char *volatile why = "an instruction that the CPU reports does not run here";
    sigaction(SIGILL, &trap, &before);
    if (sigsetjmp(escape, 1) == 0)
        why = compare(ops, c);
    sigaction(SIGILL, &before, NULL);
    free(c);
    return why;
}
