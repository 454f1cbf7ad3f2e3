/* The driver of matrix products: which thread does which strips, and in which order rows and strips pass through the caches. */
#include "kernels/block.h"
#include "kernels/cpu/mul.h"

size_t acts_int8_bytes(uint32_t max_rows, uint32_t max_k)
{
    return ((size_t)max_rows * ((max_k + 31) / 32) * ACT_BLOCK_BYTES + 127) / 64 * 64;
}

/* Rows of one pass: their int8 form stays in a second-level cache while the strips go by (docs/numerics.md, Threads). */
static uint32_t rows_of_pass(uint32_t k)
{
    enum { BYTES = 192 << 10, MIN = 32 };
    uint32_t rows = BYTES / (k / 32 * ACT_BLOCK_BYTES + 1) / SHARE_TILE * SHARE_TILE;
    return rows < MIN ? MIN : rows;
}

static void drive_job(mul_fn *fn, const struct mul *m, uint32_t strip0, uint32_t strip1)
{
    uint32_t step = rows_of_pass(m->k);
    for (uint32_t r = 0; r < m->n_rows; r += step)
        fn(m, strip0, strip1, r, r + step < m->n_rows ? r + step : m->n_rows);
}

void matmul_drive(mul_fn *quantized, mul_fn *floats, const struct matmul_job *jobs, int n_jobs, const struct acts *a,
                  int thread, int n_threads)
{
    uint32_t n_strips = 0, at = 0;
    for (int j = 0; j < n_jobs; j++)
        n_strips += (jobs[j].w->n + STRIP - 1) / STRIP;
    struct share s = share_of(n_strips, thread, n_threads);
    for (int j = 0; j < n_jobs; j++) {
        const struct weight *w = jobs[j].w;
        uint32_t n = (w->n + STRIP - 1) / STRIP;
        uint32_t begin = s.begin > at ? s.begin - at : 0, end = s.end < at + n ? s.end - at : n;
        if (s.begin < at + n && s.end > at) {
            int is_int = block_traits(w->type) != NULL;
            struct mul m = {.type = is_int ? w->type : block_float_type(w->type), .n = w->n, .k = w->k,
                            .n_rows = a->n_rows, .packed = w->packed, .acts = a->int8, .x = a->x, .y = jobs[j].y, .y_stride = jobs[j].y_stride};
            drive_job(is_int ? quantized : floats, &m, begin, end);
        }
        at += n;
    }
}
