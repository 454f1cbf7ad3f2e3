/* tests/fuzz/fuzz_cost_model.c - costs that a stage reports before READY, and what its ticks then take.
 *
 * Input      10 times 3 u32: rows, prompt_us, decode_us; attention_ns as a double; then timings: u16 rows, u16 of them sampled, u8
 *            kind, u32 reads, u32 spans, the time as a float.
 * Must hold  The table is positive, finite and does not fall with rows; every shape that can be planned has a cost above 0 that is
 *            finite; factors and guards stay within their bounds, whatever is reported.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "common/base/check.h"
#include "coordinator/cost_model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { TABLE_BYTES = 3 * 4 * N_COST_POINTS + 8, TIMING_BYTES = 17, MAX_ROWS = 4096, MAX_CONTEXT = 1 << 24 };

static void read_table(const uint8_t *data, struct msg_loaded *l)
{
    memset(l, 0, sizeof *l);
    memcpy(l->cost_rows, data, sizeof l->cost_rows);
    memcpy(l->prompt_us, data + sizeof l->cost_rows, sizeof l->prompt_us);
    memcpy(l->decode_us, data + 2 * sizeof l->cost_rows, sizeof l->decode_us);
    memcpy(&l->attention_ns, data + 3 * sizeof l->cost_rows, sizeof l->attention_ns);
    if (!isfinite(l->attention_ns) || l->attention_ns < 0) /* such a message is refused (rpc/grpc/stage_wire_from.c) */
        l->attention_ns = 0;
}

static struct cost_shape read_timing(const uint8_t *data, float *us)
{
    uint16_t rows, sampled;
    uint32_t reads, spans;
    memcpy(&rows, data, 2);
    memcpy(&sampled, data + 2, 2);
    memcpy(&reads, data + 5, 4);
    memcpy(&spans, data + 9, 4);
    memcpy(us, data + 13, 4);
    struct cost_shape s = {.rows = rows % (MAX_ROWS + 1), .reads = reads, .spans = spans};
    s.sampled = s.rows ? sampled % (s.rows + 1) : 0;
    s.n_prompt = data[4] & 1 ? s.rows - s.sampled : 0;
    return s;
}

static double cost_of(const struct cost_model *m, uint32_t rows, uint32_t sampled, uint64_t reads)
{
    const struct cost_shape s = {.rows = rows, .sampled = sampled, .n_prompt = rows - sampled, .reads = reads, .spans = reads / rows};
    const double base = cost_base_us(m, 0, &s), typical = cost_predict_us(m, 0, &s), guard = cost_guard(m, 0, cost_kind_of(&s));
    double slowest;
    CHECK(base > 0 && isfinite(base) && typical > 0 && isfinite(typical) && isfinite(typical * guard));
    CHECK(cost_sum_us(m, &s, &slowest) == typical && slowest == typical);
    return base;
}

/* Cost of more rows, or of more that are sampled where that never was dearer, is no less, up to rounding. */
static void check_costs(const struct cost_model *m)
{
    double before[3] = {0};
    for (uint32_t rows = 1; rows <= MAX_ROWS; rows += 1 + rows / 5) {
        const double us[3] = {cost_of(m, rows, 0, 0), cost_of(m, rows, rows, 0), cost_of(m, rows, 1, 0)};
        for (int i = 0; i < 3; i++)
            CHECK(us[i] >= before[i] * (1 - 1e-9) - 1e-3);
        memcpy(before, us, sizeof before);
        cost_of(m, rows, rows / 2, (uint64_t)rows * MAX_CONTEXT);
    }
    CHECK(isfinite(cost_reads_us(m, 0)) && isfinite(cost_spans_us(m, 0)));
}

static int is_factor(double f)
{
    return f >= COST_FACTOR_MIN && f <= COST_FACTOR_MAX;
}

static void check_fits(const struct cost_model *m)
{
    for (int k = 0; k < 2; k++) {
        const struct cost_fit *f = &m->stage[0].fit[k];
        CHECK(is_factor(f->mean) && is_factor(f->reads_factor) && is_factor(f->spans_factor));
        for (int b = 0; b < COST_BUCKETS; b++)
            CHECK(is_factor(f->factor[b]));
    }
    for (int k = 0; k < COST_N_KINDS; k++)
        CHECK(cost_guard(m, 0, (enum cost_kind)k) >= 1 && cost_guard(m, 0, (enum cost_kind)k) <= COST_GUARD_MAX);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct cost_model m;
    struct msg_loaded l;
    if (size < TABLE_BYTES || size > 4096)
        return 0;
    read_table(data, &l);
    cost_model_init(&m, 1);
    cost_model_set_stage(&m, 0, &l);
    check_costs(&m);
    for (data += TABLE_BYTES, size -= TABLE_BYTES; size >= TIMING_BYTES; data += TIMING_BYTES, size -= TIMING_BYTES) {
        float us;
        const struct cost_shape s = read_timing(data, &us);
        cost_model_learn(&m, 0, &s, (double)us);
        check_fits(&m);
    }
    check_costs(&m);
    return 0;
}
