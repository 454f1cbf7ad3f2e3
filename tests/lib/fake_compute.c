#include "tests/lib/fake_compute.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/rand.h"
#include "common/model/hparams.h"
#include "stage/kv.h"
#include "tests/lib/fake_script.h"

enum { HASH_FLOATS = 4, N_ANSWERS = 1024, SLOW_STEP_MS = 50 };

/* Where a scripted answer of a sequence began. */
struct answer {
    uint64_t seq;
    uint32_t first;
};

struct fake {
    struct compute base;
    struct fake_options options;
    struct fake_script script;
    uint32_t n_vocab, model_layers;
    uint8_t model_hash[32];
    struct msg_assign assign;
    struct kv_pool pool; /* 8 bytes a layer and position: [n_blocks][layers of this stage][kv_block] */
    uint64_t n_ticks;
    struct answer answers[N_ANSWERS];
};

static uint64_t chain_start(uint32_t layer)
{
    return rand_mix(0x5157e1ce00ull + layer);
}

static uint64_t layer_hash(uint64_t before, uint64_t input, uint32_t layer, uint32_t position)
{
    return rand_mix(before ^ rand_at(input + layer, position));
}

/* ids: by position, those that the sampler's penalties look at. */
static int32_t draw(uint64_t hash, const struct sampler_params *sampler, const uint32_t *ids, uint32_t position)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz ";
    if (sampler->temperature > 0)
        hash = rand_mix(hash ^ rand_at(sampler->seed, position));
    for (uint32_t i = position - sampler_history(sampler, position); i < position; i++)
        hash = rand_mix(hash ^ rand_at(ids[i], i));
    return FAKE_FIRST_BYTE + letters[hash % (sizeof letters - 1)];
}

float fake_logprob(uint32_t position, uint32_t rank)
{
    return -(float)(7 * position % 32) / 32 - (float)rank;
}

static void fill_logprobs(struct tick_sample *s, uint32_t position, uint32_t n_vocab)
{
    if (s->sampler->n_top == 0 || s->id < 0)
        return;
    s->logprob = fake_logprob(position, 0);
    s->n_tops = s->sampler->n_top - 1;
    for (uint32_t i = 0; i < s->n_tops; i++)
        s->tops[i] = (struct top_logprob){.id = ((uint32_t)s->id + i) % n_vocab, .logprob = fake_logprob(position, i)};
}

void fake_reference(uint32_t n_layers, const struct sampler_params *asked, const uint32_t *prompt, uint32_t n_prompt,
                    int32_t *out, uint32_t n_out)
{
    struct sampler_params sampler = *asked;
    uint64_t *before = calloc(n_layers, sizeof *before);
    uint32_t *ids = calloc((size_t)n_prompt + n_out, sizeof *ids);
    sampler.n_prompt = n_prompt;
    for (uint32_t l = 0; before && l < n_layers; l++)
        before[l] = chain_start(l);
    for (uint32_t p = 0; before && ids && p + 1 < n_prompt + n_out; p++) {
        uint64_t h = ids[p] = p < n_prompt ? prompt[p] : (uint32_t)out[p - n_prompt];
        for (uint32_t l = 0; l < n_layers; l++)
            before[l] = h = layer_hash(before[l], h, l, p);
        if (p + 1 >= n_prompt)
            out[p + 1 - n_prompt] = draw(h, &sampler, ids, p + 1);
    }
    free(before);
    free(ids);
}

/* --- residuals --------------------------------------------------------------------------------------------------------------- */

/* Floats beyond the hash repeat parts of it, so that every byte of a frame matters. */
static float padding(uint64_t hash, uint32_t i)
{
    return (float)(rand_at(hash, i) >> 48);
}

static void put_hash(float *row, uint32_t width, uint64_t hash)
{
    for (uint32_t i = 0; i < HASH_FLOATS; i++)
        row[i] = (float)(hash >> 16 * i & 0xffff);
    for (uint32_t i = HASH_FLOATS; i < width; i++)
        row[i] = padding(hash, i);
}

static uint64_t get_hash(const float *row, uint32_t width)
{
    uint64_t hash = 0;
    for (uint32_t i = 0; i < HASH_FLOATS; i++)
        hash |= (uint64_t)(row[i] >= 0 && row[i] <= 65535 ? row[i] : 0) << 16 * i;
    int damaged = 0;
    for (uint32_t i = HASH_FLOATS; i < width; i++)
        damaged |= row[i] != padding(hash, i);
    return damaged ? ~hash : hash;
}

/* --- costs and faults ----------------------------------------------------------------------------------------------------------- */

static void sleep_until(int64_t when_ns)
{
    struct timespec t = {.tv_sec = (time_t)(when_ns / NS_PER_S), .tv_nsec = (long)(when_ns % NS_PER_S)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) != 0)
        ;
}

/* As a fault would: the default action, whatever handler the program has set. */
static void die_by(int signal_number)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, signal_number);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    signal(signal_number, SIG_DFL);
    kill(getpid(), signal_number);
}

/* A sequence with one row in a tick decodes; more rows are a piece of a prompt. */
static int64_t cost_us(const struct fake *f, const struct tick *t)
{
    int64_t us = f->script.tick_us;
    for (uint32_t i = 0, n; i < t->n_rows; i += n) {
        for (n = 1; i + n < t->n_rows && t->rows[i + n].seq == t->rows[i].seq; n++)
            ;
        us += n == 1 ? f->script.row_us : (int64_t)n * f->script.token_us;
    }
    return us;
}

/* Like a tick whose weights come from a slow disk: late, but layer after layer is done. */
static void sleep_in_steps(struct fake *f, int64_t ms)
{
    const int64_t end_ns = clock_now_ns() + ms * NS_PER_MS;
    for (int64_t next_ns = clock_now_ns(); next_ns < end_ns;) {
        next_ns += SLOW_STEP_MS * NS_PER_MS;
        sleep_until(next_ns < end_ns ? next_ns : end_ns);
        atomic_fetch_add(&f->base.progress, 1);
    }
}

/* A prompt that kills whoever computes it. */
static void die_of_poison(const struct fake *f, const struct tick *t)
{
    for (uint32_t i = 0; f->script.poison_signal && i < t->n_rows; i++)
        if (t->rows[i].id == f->script.poison_id)
            die_by(f->script.poison_signal);
}

static enum status misbehave(struct fake *f, int *bad_logits, struct error *err)
{
    for (uint32_t i = 0; i < f->script.n_events; i++) {
        const struct fake_event *e = &f->script.events[i];
        int now = e->tick == f->n_ticks || (e->kind == FAKE_FAIL_FROM && f->n_ticks > e->tick);
        if (!now)
            continue;
        switch (e->kind) {
        case FAKE_FAIL:
        case FAKE_FAIL_FROM:
            return error_set(err, status_from_int((int)e->value), "the script fails tick %llu: %s",
                             (unsigned long long)f->n_ticks, status_text(status_from_int((int)e->value)));
        case FAKE_SLEEP:
            sleep_until(clock_now_ns() + e->value * NS_PER_MS);
            break;
        case FAKE_SLOW:
            sleep_in_steps(f, e->value);
            break;
        case FAKE_BAD_LOGITS:
            *bad_logits = 1;
            break;
        case FAKE_CRASH:
            die_by((int)e->value);
            break;
        }
    }
    return STATUS_OK;
}

/* --- tokens ------------------------------------------------------------------------------------------------------------------------ */

/* How many ids of its answer a sequence has had; only needed by scripts, and for at most N_ANSWERS sequences at a time. */
static uint32_t answered(struct fake *f, uint64_t seq, uint32_t position)
{
    struct answer *a = &f->answers[seq % N_ANSWERS];
    if (f->script.answer_at)
        return position - f->script.answer_at;
    if (a->seq != seq || position < a->first)
        *a = (struct answer){.seq = seq, .first = position};
    return position - a->first;
}

static int32_t next_id(struct fake *f, const struct tick_row *row, const struct tick_sample *sample, uint64_t hash)
{
    const struct fake_script *s = &f->script;
    const struct sampler_params *sampler = sample->sampler;
    for (uint32_t i = 0; i < sampler->n_bias; i++)
        if (sample->bias[i].bias == 100)
            return (int32_t)sample->bias[i].id;
    if (!s->answer && !s->end_after)
        return draw(hash, sampler, sample->ids, row->position + 1);
    uint32_t i = answered(f, row->seq, row->position + 1);
    if (s->end_after && i >= s->end_after)
        return FAKE_END;
    if (!s->answer)
        return draw(hash, sampler, sample->ids, row->position + 1);
    if (i >= s->n_answer && !s->repeat)
        return FAKE_END;
    return s->answer[i % s->n_answer];
}

/* --- the table ------------------------------------------------------------------------------------------------------------------------ */

static uint32_t n_layers(const struct fake *f)
{
    return f->assign.end_layer - f->assign.first_layer;
}

static uint64_t *cell(struct fake *f, const struct tick_row *row, uint32_t position, uint32_t l)
{
    const uint64_t block = row->blocks[position / f->assign.kv_block];
    return (uint64_t *)(void *)f->pool.data + (block * n_layers(f) + l) * f->assign.kv_block + position % f->assign.kv_block;
}

static uint64_t run_row(struct fake *f, const struct tick_row *row, uint64_t input)
{
    for (uint32_t l = 0; l < n_layers(f); l++) {
        uint32_t layer = f->assign.first_layer + l;
        uint64_t before = row->position ? *cell(f, row, row->position - 1, l) : chain_start(layer);
        *cell(f, row, row->position, l) = input = layer_hash(before, input, layer, row->position);
    }
    return input;
}

static enum status fake_run(struct compute *c, struct tick *t, struct error *err)
{
    struct fake *f = (struct fake *)c;
    const int64_t start_ns = clock_now_ns();
    const uint32_t width = f->script.width;
    int bad_logits = 0;
    f->n_ticks++;
    TRY(misbehave(f, &bad_logits, err));
    die_of_poison(f, t);
    uint32_t sample = 0;
    for (uint32_t i = 0; i < t->n_rows; i++) {
        const struct tick_row *row = &t->rows[i];
        if (!t->in && row->id >= f->n_vocab)
            return error_set(err, STATUS_STAGE, "row %u: id %u of a vocabulary of %u", i, row->id, f->n_vocab);
        uint64_t hash = run_row(f, row, t->in ? get_hash(t->in + (size_t)i * width, width) : row->id);
        if (t->out)
            put_hash(t->out + (size_t)i * width, width, hash);
        if (sample < t->n_samples && t->samples[sample].row == i) {
            struct tick_sample *out = &t->samples[sample++];
            out->bad_logits = (uint32_t)bad_logits;
            out->id = bad_logits ? -1 : next_id(f, row, out, hash);
            fill_logprobs(out, row->position + 1, f->n_vocab);
        }
    }
    int64_t us = cost_us(f, t);
    if (us)
        sleep_until(start_ns + us * NS_PER_US);
    atomic_fetch_add(&c->progress, n_layers(f) ? n_layers(f) : 1);
    return STATUS_OK;
}

static void fill_costs(const struct fake *f, struct msg_loaded *out)
{
    static const uint32_t rows[N_COST_POINTS] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512};
    for (int i = 0; i < N_COST_POINTS && rows[i] <= f->assign.max_rows; i++) {
        out->cost_rows[i] = rows[i];
        /* Never 0: a planner divides by what a tick costs. */
        uint32_t overhead = f->script.tick_us ? f->script.tick_us : 20;
        out->prompt_us[i] = overhead + rows[i] * (rows[i] == 1 ? f->script.row_us : f->script.token_us);
        out->decode_us[i] = overhead + rows[i] * f->script.row_us;
    }
}

static const char *profile_of(const struct fake *f)
{
    return f->options.profile ? f->options.profile : "fake";
}

static struct kv_meaning meaning(const struct fake *f)
{
    struct kv_meaning k;
    memset(&k, 0, sizeof k);
    memcpy(k.model_hash, f->model_hash, sizeof k.model_hash);
    memcpy(k.kv_type, f->assign.kv_type, sizeof k.kv_type);
    snprintf(k.profile, sizeof k.profile, "%s", profile_of(f));
    k.first_layer = f->assign.first_layer;
    k.end_layer = f->assign.end_layer;
    k.shape = (struct kv_shape){.n_layers = n_layers(f) ? n_layers(f) : 1, .n_kv_heads = 1, .head_dim = 2,
                                .block_positions = f->assign.kv_block};
    return k;
}

/* A stage that was started as any one has the script of the one that it is now. */
static enum status follow_assignment(struct fake *f, const struct msg_assign *a, struct error *err)
{
    if (a->stage == f->options.stage)
        return STATUS_OK;
    struct fake_script s;
    TRY(fake_script_read(f->options.script_path, a->stage, f->options.life, &s, err));
    fake_script_free(&f->script);
    f->script = s;
    f->options.stage = a->stage;
    return STATUS_OK;
}

static enum status fake_load(struct compute *c, const struct msg_assign *a, struct msg_loaded *out, struct error *err)
{
    struct fake *f = (struct fake *)c;
    if (f->model_layers && a->end_layer > f->model_layers)
        return error_set(err, STATUS_PROTOCOL, "layers %u..%u, the model has %u", a->first_layer, a->end_layer,
                         f->model_layers);
    TRY(follow_assignment(f, a, err));
    if (f->script.load_ms)
        sleep_until(clock_now_ns() + f->script.load_ms * NS_PER_MS);
    f->assign = *a;
    struct kv_options o = {.meaning = meaning(f), .fd = f->options.kv_fd > 0 ? f->options.kv_fd : -1, .lazy = 1};
    const uint64_t block_bytes = kv_block_bytes(&o.meaning.shape);
    uint64_t n = a->n_blocks;
    if (!n && a->kv_bytes)
        n = a->kv_bytes / block_bytes;
    if (!n)
        n = (uint64_t)a->slots * ((a->context + a->kv_block - 1) / a->kv_block);
    c->pool = NULL;
    kv_pool_close(&f->pool);
    if (n == 0 || n * block_bytes > 1ull << 32)
        return error_set(err, STATUS_OUT_OF_MEMORY, "%llu blocks of %llu bytes", (unsigned long long)n,
                         (unsigned long long)block_bytes);
    o.n_blocks = (uint32_t)n;
    TRY(kv_pool_open(&o, &f->pool, err));
    c->pool = &f->pool;
    *out = (struct msg_loaded){.n_blocks = o.n_blocks, .kv_bytes = n * block_bytes};
    fill_costs(f, out);
    return STATUS_OK;
}

static void fake_describe(struct compute *c, struct msg_hello *out)
{
    const struct fake *f = (const struct fake *)c;
    snprintf(out->profile, sizeof out->profile, "%s", profile_of(f));
    memcpy(out->model_hash, f->model_hash, sizeof out->model_hash);
    out->n_layers = f->model_layers;
    out->memory_bytes = 1ull << 30;
}

static uint32_t fake_width(const struct compute *c)
{
    return ((const struct fake *)c)->script.width;
}

static void fake_destroy(struct compute *c)
{
    struct fake *f = (struct fake *)c;
    fake_script_free(&f->script);
    kv_pool_close(&f->pool);
    free(f);
}

static const struct compute_table fake_table = {"fake", fake_describe, fake_load, fake_width, fake_run, fake_destroy};

static enum status read_model(struct fake *f, const char *path, struct error *err)
{
    struct model m;
    TRY(model_open(path, &m, err));
    f->model_layers = m.hp.n_layers;
    f->n_vocab = m.hp.n_vocab;
    memcpy(f->model_hash, m.hash, sizeof f->model_hash);
    model_close(&m);
    return STATUS_OK;
}

enum status fake_compute_create(const struct fake_options *o, struct compute **out, struct error *err)
{
    struct fake *f = calloc(1, sizeof *f);
    if (!f)
        return error_set(err, STATUS_OUT_OF_MEMORY, "no memory for a fake stage");
    f->base.table = &fake_table;
    f->options = *o;
    f->n_vocab = FAKE_VOCAB;
    enum status s = fake_script_read(o->script_path, o->stage, o->life, &f->script, err);
    if (s == STATUS_OK && o->model_path)
        s = read_model(f, o->model_path, err);
    if (s != STATUS_OK) {
        fake_destroy(&f->base);
        return s;
    }
    if (f->script.start_ms)
        sleep_until(clock_now_ns() + f->script.start_ms * NS_PER_MS);
    *out = &f->base;
    return STATUS_OK;
}
