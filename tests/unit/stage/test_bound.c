/* Runs that end below the last stage, and pools that outlive their workers: what is read again is read only where it was lost,
 * and what follows is bit-equal. With the fake compute (argument `fake`), the tiny model (none) or `smollm2`. */
#include "tests/unit/stage/cmocka_all.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/base/rand.h"
#include "stage/kv.h"
#include "stage/model_compute.h"
#include "tests/lib/fake_compute.h"
#include "tests/lib/pipeline.h"

enum { WAIT_MS = 20000, N_STAGES = 3, KV_BLOCK = 16, CONTEXT = 128, N_BLOCKS = 24, N_PROMPT = 70, N_OUT = 6, N_ALL = N_PROMPT + N_OUT };

/* What one sequence is. Sampled ids follow the prompt in ids[]; digest[i]: of the logits that gave ids[i]. */
struct line {
    uint32_t ids[N_ALL], blocks[CONTEXT / KV_BLOCK];
    uint64_t digest[N_ALL];
};

static struct {
    const char *path; /* NULL: fake */
    uint32_t n_vocab, n_layers;
    int fd[N_STAGES];
    struct compute *compute[N_STAGES];
    struct pipeline *p;
    struct plan *plan;
    struct line *sees; /* who gets the digests */
    int32_t got[4];    /* ids of the last plan's runs */
    uint64_t tick;     /* of the last plan */
} t;

static enum status create(void *ctx, uint32_t stage, struct compute **out, struct error *err)
{
    (void)ctx;
    if (t.path) {
        const struct model_compute_options o = {
            .model_path = t.path, .n_threads = 1, .kv_fd = t.fd[stage], .skip_calibration = 1};
        TRY(model_compute_create(&o, &t.compute[stage], err));
    } else {
        TRY(fake_compute_create(&(struct fake_options){.stage = stage, .kv_fd = t.fd[stage]}, &t.compute[stage], err));
    }
    *out = t.compute[stage];
    return STATUS_OK;
}

/* On the last stage's compute thread; the result comes after it. */
static void see_logits(void *ctx, uint64_t seq, uint32_t position, const float *logits, uint32_t n_vocab)
{
    uint64_t h = 1469598103934665603ull;
    (void)ctx;
    if (seq != 1 || !t.sees)
        return;
    for (size_t i = 0; i < n_vocab * sizeof *logits; i++)
        h = (h ^ ((const uint8_t *)logits)[i]) * 1099511628211ull;
    t.sees->digest[position + 1] = h;
}

/* --- bed ---------------------------------------------------------------------------------------------------------------------- */

static uint32_t n_stages(void)
{
    return t.n_layers < N_STAGES ? t.n_layers : N_STAGES;
}

static void open_stages(void)
{
    struct error err = {0};
    const struct pipeline_options o = {.n_stages = n_stages(), .links = PIPELINE_UNIX, .n_layers = t.n_layers, .slots = 3,
                                       .context = CONTEXT, .kv_block = KV_BLOCK, .n_blocks = N_BLOCKS, .max_rows = 96,
                                       .create = create};
    if (pipeline_open(&o, &t.p, &err) != STATUS_OK)
        fail_msg("%s", err.message);
    if (t.path)
        model_compute_set_logits_sink(t.compute[n_stages() - 1], see_logits, NULL);
}

static void open_bed(void)
{
    for (uint32_t i = 0; i < N_STAGES; i++)
        assert_true((t.fd[i] = memfd_create("test-kv", MFD_CLOEXEC)) > 0);
    open_stages();
}

static void close_bed(void)
{
    pipeline_close(t.p);
    for (uint32_t i = 0; i < N_STAGES; i++)
        close(t.fd[i]);
    t.sees = NULL;
}

static void raise_epoch(void)
{
    struct error err = {0};
    if (pipeline_raise_epoch(t.p, &err) != STATUS_OK)
        fail_msg("%s", err.message);
}

/* --- plans --------------------------------------------------------------------------------------------------------------------- */

static void begin(void)
{
    t.plan = pipeline_plan(t.p);
}

static void open_seq(uint64_t seq, const struct line *x, uint32_t length)
{
    const struct plan_op op = {.kind = OP_OPEN, .seq = seq, .slot = (uint32_t)seq - 1, .length = length,
                               .n_blocks = CONTEXT / KV_BLOCK, .sampler = pipeline_greedy};
    assert_int_equal(plan_add_op(t.plan, &op, x->blocks), STATUS_OK);
}

static void add_run(uint64_t seq, const struct line *x, uint32_t from, uint32_t end, uint32_t last_stage, enum run_sample sample)
{
    const struct plan_run run = {.seq = seq, .n = end - from, .kv_index = from, .source = SOURCE_IDS, .sample = sample,
                                 .last_stage = last_stage, .table_check = plan_table_digest(x->blocks, CONTEXT / KV_BLOCK)};
    assert_int_equal(plan_add_run(t.plan, &run, x->ids + from), STATUS_OK);
}

static void run_plan(void)
{
    struct pipeline_message m;
    assert_int_equal(pipeline_post_plan(t.p, -1, t.plan), STATUS_OK);
    for (;;) {
        assert_int_equal(pipeline_next(t.p, WAIT_MS, &m), STATUS_OK);
        if (m.m.kind == FROM_STAGE_FAILED)
            fail_msg("%s", m.m.failed.message);
        if (m.m.kind == FROM_STAGE_RESULT)
            break;
    }
    if (m.m.result->status != STATUS_OK)
        fail_msg("%s", m.m.result->message);
    assert_int_equal(m.m.result->n_runs, t.plan->n_runs);
    for (uint32_t i = 0; i < t.plan->n_runs; i++)
        t.got[i] = m.m.result->runs[i].id;
    t.tick = t.plan->tick;
    pipeline_release(&m);
}

/* --- texts --------------------------------------------------------------------------------------------------------------------- */

static void make_prompt(struct line *x, uint64_t seed, uint32_t first_block)
{
    memset(x, 0, sizeof *x);
    for (uint32_t i = 0; i < N_PROMPT; i++)
        x->ids[i] = (uint32_t)(rand_at(seed, i) % t.n_vocab);
    for (uint32_t i = 0; i < CONTEXT / KV_BLOCK; i++) /* in no order */
        x->blocks[i] = first_block + (i * 3 + 1) % (CONTEXT / KV_BLOCK);
}

/* Decodes from position `at`, whose id is known; ids and digests go into x. */
static void decode(uint64_t seq, struct line *x, uint32_t at)
{
    for (; at + 1 < N_ALL; at++) {
        begin();
        add_run(seq, x, at, at + 1, n_stages() - 1, SAMPLE_LAST);
        run_plan();
        x->ids[at + 1] = (uint32_t)t.got[0];
    }
}

/* The usual way: the prompt in two pieces on all stages, then row by row. */
static void read_whole(uint64_t seq, struct line *x)
{
    begin();
    open_seq(seq, x, 0);
    add_run(seq, x, 0, 40, n_stages() - 1, SAMPLE_NONE);
    run_plan();
    begin();
    add_run(seq, x, 40, N_PROMPT, n_stages() - 1, SAMPLE_LAST);
    run_plan();
    x->ids[N_PROMPT] = (uint32_t)t.got[0];
    decode(seq, x, N_PROMPT);
}

static void check_text(const struct line *want, const struct line *got, uint32_t from)
{
    for (uint32_t i = from; i < N_ALL; i++)
        if (want->ids[i] != got->ids[i] || want->digest[i] != got->digest[i])
            fail_msg("id %u is %u, expected %u; logits %s", i, got->ids[i], want->ids[i],
                     want->digest[i] == got->digest[i] ? "equal" : "differ");
}

static void check_reference(const struct line *x)
{
    int32_t want[N_OUT];
    if (t.path)
        return;
    fake_reference(t.n_layers, &pipeline_greedy, x->ids, N_PROMPT, want, N_OUT);
    assert_memory_equal(x->ids + N_PROMPT, want, sizeof want);
}

/* --- pools --------------------------------------------------------------------------------------------------------------------- */

static uint8_t *map_pool(uint32_t stage, size_t *bytes)
{
    struct stat st;
    assert_int_equal(fstat(t.fd[stage], &st), 0);
    *bytes = (size_t)st.st_size - KV_HEADER_BYTES;
    uint8_t *at = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, t.fd[stage], 0);
    assert_true(at != MAP_FAILED);
    return at + KV_HEADER_BYTES;
}

static void unmap_pool(uint8_t *data, size_t bytes)
{
    munmap(data - KV_HEADER_BYTES, bytes + KV_HEADER_BYTES);
}

/* What a stage that lost its pool has in it. */
static void spoil_pool(uint32_t stage)
{
    size_t bytes;
    uint8_t *data = map_pool(stage, &bytes);
    memset(data, 0x35, bytes);
    unmap_pool(data, bytes);
}

static uint64_t pool_digest(uint32_t stage)
{
    size_t bytes;
    uint8_t *data = map_pool(stage, &bytes);
    uint64_t h = 0;
    for (size_t i = 0; i < bytes; i++)
        h = (h ^ data[i]) * 1099511628211ull + 1;
    unmap_pool(data, bytes);
    return h;
}

/* --- runs that end below ----------------------------------------------------------------------------------------------------------- */

/* Stages 0..k have lost their pools: they alone read the prompt and half of the answer again, in two pieces. Then the last known row
 * passes all stages, beside a new sequence. */
static void replay_on_stages_up_to(uint32_t k)
{
    struct line first, again, other, alone;
    uint64_t above[N_STAGES] = {0};
    const uint32_t last = n_stages() - 1, known = N_PROMPT + 3;
    open_bed();
    make_prompt(&first, 10 + k, 0);
    t.sees = &first;
    read_whole(1, &first);
    check_reference(&first);
    for (uint32_t i = 0; i <= k; i++)
        spoil_pool(i);
    raise_epoch();
    again = first;
    memset(again.digest, 0, sizeof again.digest);
    memset(again.ids + known, 0, (N_ALL - known) * sizeof again.ids[0]);
    t.sees = &again;
    for (uint32_t i = k + 1; i <= last; i++)
        above[i] = pool_digest(i);
    begin();
    open_seq(1, &again, 0);
    add_run(1, &again, 0, 33, k, SAMPLE_NONE);
    run_plan();
    for (uint32_t i = k + 1; i <= last; i++)
        assert_true(above[i] == pool_digest(i)); /* nothing was computed there */
    make_prompt(&other, 99, CONTEXT / KV_BLOCK);
    begin(); /* the row that ends here comes first: those behind it move up in the frame */
    open_seq(2, &other, 0);
    add_run(1, &again, 33, known - 1, k, SAMPLE_NONE);
    add_run(2, &other, 0, 40, last, SAMPLE_NONE);
    run_plan();
    begin();
    add_run(1, &again, known - 1, known, last, SAMPLE_LAST);
    add_run(2, &other, 40, N_PROMPT, last, SAMPLE_LAST);
    run_plan();
    again.ids[known] = (uint32_t)t.got[0];
    other.ids[N_PROMPT] = (uint32_t)t.got[1];
    decode(1, &again, known);
    check_text(&first, &again, known);
    t.sees = NULL;
    decode(2, &other, N_PROMPT);
    raise_epoch(); /* and the other is what it is alone */
    make_prompt(&alone, 99, CONTEXT / KV_BLOCK);
    read_whole(1, &alone);
    check_text(&alone, &other, 0);
    check_reference(&other);
    close_bed();
}

static void what_lower_stages_lost_is_read_there_only(void **state)
{
    (void)state;
    for (uint32_t k = 0; k + 1 < n_stages(); k++)
        replay_on_stages_up_to(k);
}

/* --- pools that outlive their workers ------------------------------------------------------------------------------------------------ */

/* A new epoch's ACK of every stage. */
static void ask_pools(struct msg_ack *acks)
{
    struct pipeline_message m;
    pipeline_post_epoch(t.p);
    for (uint32_t n = 0; n < n_stages(); n++) {
        assert_int_equal(pipeline_await(t.p, -1, FROM_STAGE_ACK, WAIT_MS, &m), STATUS_OK);
        acks[m.stage] = m.m.ack;
    }
}

static void workers_come_back_to_what_they_had_computed(void **state)
{
    (void)state;
    struct line first, again;
    struct msg_ack before[N_STAGES], after[N_STAGES];
    open_bed();
    ask_pools(before);
    for (uint32_t i = 0; i < n_stages(); i++)
        assert_true(before[i].kv_id && before[i].kv_tick == 0);
    raise_epoch();
    make_prompt(&first, 5, 3);
    t.sees = &first;
    read_whole(1, &first);
    const uint64_t tick = t.tick, session = pipeline_session(t.p), epoch = pipeline_epoch(t.p), known = N_PROMPT + 2;
    pipeline_close(t.p);
    open_stages();
    ask_pools(after);
    for (uint32_t i = 0; i < n_stages(); i++) {
        assert_true(after[i].kv_id == before[i].kv_id);
        assert_true(after[i].kv_session == session && after[i].kv_epoch == epoch && after[i].kv_tick == tick);
    }
    raise_epoch();
    again = first;
    memset(again.ids + known, 0, (N_ALL - known) * sizeof again.ids[0]);
    memset(again.digest, 0, sizeof again.digest);
    t.sees = &again;
    begin();
    open_seq(1, &again, known - 1);
    add_run(1, &again, known - 1, known, n_stages() - 1, SAMPLE_LAST);
    run_plan();
    again.ids[known] = (uint32_t)t.got[0];
    decode(1, &again, known);
    check_text(&first, &again, known);
    ask_pools(after);
    assert_int_equal(after[0].kv_epoch, pipeline_epoch(t.p) - 1);
    close_bed();
}

static int find_model(const char *name)
{
    struct model m;
    struct error err = {0};
    t.n_layers = 8;
    t.n_vocab = FAKE_VOCAB;
    if (name && strcmp(name, "fake") == 0)
        return 0;
    t.path = name ? getenv("SLUICE_MODEL_SMOLLM2") : SLUICE_VECTORS "/tiny/llama-q4_k.gguf";
    if (!t.path) {
        puts("skipped: SLUICE_MODEL_SMOLLM2 does not name the model");
        return 77;
    }
    if (model_open(t.path, &m, &err) != STATUS_OK) {
        puts(err.message);
        return 1;
    }
    t.n_layers = m.hp.n_layers;
    t.n_vocab = m.hp.n_vocab;
    model_close(&m);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_lower_stages_lost_is_read_there_only),
        cmocka_unit_test(workers_come_back_to_what_they_had_computed),
    };
    int end = find_model(argc > 1 ? argv[1] : NULL);
    if (end)
        return end;
    log_set_levels("error", NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
