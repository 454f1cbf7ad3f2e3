#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/rand.h"
#include "coordinator/scheduler.h"

static const struct sched_options two_stages = {.n_stages = 2, .n_slots = 8, .max_rows = 128, .decode_share = 0.5,
                                                .max_stall_us = 250e3, .max_tick_us = 250e3, .delta_us = 50, .lambda_us = 50};

static struct sched *with(const struct sched_options *o, struct sched_plan **plan)
{
    static const struct msg_loaded costs = {.cost_rows = {1, 16, 64, 512},
                                            .prompt_us = {4000, 4500, 9000, 70000},
                                            .decode_us = {4100, 6000, 15000, 120000},
                                            .attention_ns = 20};
    struct sched *s;
    assert_int_equal(sched_create(o, &s), STATUS_OK);
    assert_int_equal(sched_plan_create(s, plan), STATUS_OK);
    for (uint32_t i = 0; i < o->n_stages; i++)
        sched_set_stage(s, i, &costs);
    return s;
}

static void done(struct sched *s, struct sched_plan *p)
{
    sched_plan_destroy(p);
    sched_destroy(s);
}

/* Retires what is in flight but the newest tick, and sends one. Rows of `slot` in it, 0 where none could be sent. */
static uint32_t turn(struct sched *s, struct sched_plan *p, uint32_t slot)
{
    uint32_t n = 0;
    for (struct sched_stats st = sched_stats(s); st.in_flight > 1; st = sched_stats(s))
        assert_int_equal(sched_retire(s, st.oldest_tick, NULL), STATUS_OK);
    if (!sched_plan(s, p))
        return 0;
    for (uint32_t i = 0; i < p->n_runs; i++)
        n += p->runs[i].ref.slot == slot ? p->runs[i].n : 0;
    sched_commit(s, p);
    return n;
}

/* A piece is never smaller than --piece-max or the tick allow: else nothing would be read at all. */
static void a_prompt_is_read_whatever_the_limits_of_rows(void **state)
{
    (void)state;
    for (uint32_t max_rows = 1; max_rows <= 16; max_rows++)
        for (uint32_t piece_max = 1; piece_max <= 16; piece_max++) {
            struct sched_options o = two_stages;
            o.max_rows = max_rows;
            o.piece_max = piece_max;
            struct sched_plan *p;
            struct sched *s = with(&o, &p);
            const struct sched_sequence q = {.n_prompt = 40, .n_answer = 1, .order = 1, .limit = UINT32_MAX};
            assert_int_equal(sched_add(s, (struct slot_ref){0, 1}, &q), STATUS_OK);
            uint32_t n = 0;
            for (int i = 0; i < 100 && n < 40; i++)
                n += turn(s, p, 0);
            if (n != 40)
                fail_msg("%u rows a tick, %u a piece: %u of 40 read", max_rows, piece_max, n);
            done(s, p);
        }
}

/* One tick is planned, sent and done before the next, with the time that it took. Rows of slot 0. */
static uint32_t timed_turn(struct sched *s, struct sched_plan *p, double (*took_us)(const struct sched_plan *p, uint64_t *seed), uint64_t *seed)
{
    uint32_t n = 0;
    if (!sched_plan(s, p))
        return 0;
    for (uint32_t i = 0; i < p->n_runs; i++)
        n += p->runs[i].ref.slot == 0 ? p->runs[i].n : 0;
    sched_commit(s, p);
    assert_int_equal(sched_retire(s, p->tick, NULL), STATUS_OK);
    for (uint32_t i = 0; i < 2; i++)
        sched_timing(s, i, p->tick, took_us(p, seed));
    return n;
}

/* Reads what is new of a prompt, alone; fails where it does not get on. */
static void read_alone(struct sched *s, struct sched_plan *p, uint64_t order, uint32_t position, uint32_t n,
                       double (*took_us)(const struct sched_plan *p, uint64_t *seed), uint64_t *seed)
{
    const struct slot_ref ref = {.slot = 0, .seq = order};
    const struct sched_sequence q = {.position = position, .n_prompt = position + n, .n_answer = 50, .order = order,
                                     .limit = UINT32_MAX};
    assert_int_equal(sched_add(s, ref, &q), STATUS_OK);
    for (uint32_t read = 0, rows; read < n; read += rows)
        if ((rows = timed_turn(s, p, took_us, seed)) == 0)
            fail_msg("%u new tokens behind %u: %u are read, and no more", n, position, read);
    assert_int_equal(sched_remove(s, ref), STATUS_OK);
}

static double takes_what_it_likes(const struct sched_plan *p, uint64_t *seed)
{
    return p->cost_us[0] * (0.35 + 2.6 * rand_unit(7, (*seed)++));
}

/* Times that jump teach costs by which fewer rows take longer. */
static void a_prompt_is_read_whatever_ticks_have_taken(void **state)
{
    (void)state;
    uint64_t seed = 1;
    for (uint32_t rows = 1; rows <= 40; rows++) {
        struct sched_options o = two_stages;
        o.max_rows = rows % 2 ? rows : 128;
        o.piece_max = rows;
        o.max_tick_us = 1000;
        struct sched_plan *p;
        struct sched *s = with(&o, &p);
        for (uint64_t order = 1; order <= 100; order++)
            read_alone(s, p, order, 0, 1 + (uint32_t)(rand_at(8, seed++) % 100), takes_what_it_likes, &seed);
        done(s, p);
    }
}

/* A row's own attention is cheap; that a piece reads its prefix once more is not. */
static double reads_memory(const struct sched_plan *p, uint64_t *seed)
{
    (void)seed;
    return 4000 + 130.0 * p->shape.rows + 0.02 * (0.2 * (double)p->shape.reads + 8 * (double)p->shape.spans);
}

/* Where a piece that is worth it is long, the end of a prompt may be shorter, and more than a stream beside it could bear. */
static void what_is_new_behind_a_long_prefix_is_read_however_little_it_is(void **state)
{
    (void)state;
    struct sched_plan *p;
    struct sched_options o = two_stages;
    uint64_t order = 1;
    o.max_rows = o.piece_max = 512;
    struct sched *s = with(&o, &p);
    for (int i = 0; i < 500; i++)
        read_alone(s, p, order++, 300000, i % 2 ? 8 : 512, reads_memory, NULL);
    for (uint32_t n = 1; n <= 200; n++)
        read_alone(s, p, order++, 300000, n, reads_memory, NULL);
    done(s, p);
}

/* As near as a float: the one that the tick is measured by must be the one that comes first. */
static void of_two_prompts_that_are_nearly_alike_one_is_read(void **state)
{
    (void)state;
    static const struct msg_loaded costs = {.cost_rows = {1, 512}, .prompt_us = {4000, 70000}, .decode_us = {4100, 120000},
                                            .attention_ns = 1e-3};
    struct sched_options o = two_stages;
    o.max_tick_us = 1000;
    o.piece_max = 8;
    for (uint32_t n = 20; n < 120; n++) {
        struct sched_plan *p;
        struct sched *s = with(&o, &p);
        sched_set_stage(s, 0, &costs);
        sched_set_stage(s, 1, &costs);
        for (uint32_t i = 0; i < 2; i++) {
            const struct sched_sequence q = {.position = i, .n_prompt = i + n, .n_answer = 1, .order = 2 - i, .limit = UINT32_MAX};
            assert_int_equal(sched_add(s, (struct slot_ref){i, i + 1}, &q), STATUS_OK);
        }
        if (!sched_plan(s, p))
            fail_msg("of two prompts of %u tokens none is read", n);
        done(s, p);
    }
}

static void streams_that_could_fill_every_tick_leave_room_for_a_prompt(void **state)
{
    (void)state;
    struct sched_options o = two_stages;
    o.n_slots = o.max_rows = 16;
    struct sched_plan *p;
    struct sched *s = with(&o, &p);
    for (uint32_t i = 1; i < 16; i++) {
        const struct sched_sequence q = {.n_prompt = 1, .n_answer = 1000, .order = i, .limit = UINT32_MAX};
        assert_int_equal(sched_add(s, (struct slot_ref){i, i}, &q), STATUS_OK);
    }
    for (int i = 0; i < 20; i++)
        turn(s, p, 0);
    const struct sched_sequence q = {.n_prompt = 64, .n_answer = 1, .order = 99, .limit = UINT32_MAX};
    assert_int_equal(sched_add(s, (struct slot_ref){0, 99}, &q), STATUS_OK);
    uint32_t n = 0;
    for (int i = 0; i < 50 && n < 64; i++)
        n += turn(s, p, 0);
    assert_int_equal(n, 64);
    done(s, p);
}

/* --- one sequence, step by step ---------------------------------------------------------------------------------------------------- */

static void a_prompt_is_read_and_its_rows_follow_without_the_coordinator(void **state)
{
    (void)state;
    struct sched_plan *p;
    struct sched *s = with(&two_stages, &p);
    struct slot_ref ref = {.slot = 3, .seq = 9};
    assert_int_equal(sched_plan(s, p), 0);
    assert_int_equal(sched_add(s, ref, &(struct sched_sequence){.n_prompt = 10, .n_answer = 4, .order = 1, .limit = UINT32_MAX}), STATUS_OK);
    assert_int_equal(sched_add(s, ref, &(struct sched_sequence){.n_prompt = 10, .n_answer = 4, .order = 1, .limit = UINT32_MAX}), STATUS_SLOTS_BUSY);

    assert_int_equal(sched_plan(s, p), 1);
    assert_int_equal(p->tick, 1);
    assert_int_equal(p->n_runs, 1);
    assert_int_equal(p->runs[0].n, 10);
    assert_int_equal(p->runs[0].kv_index, 0);
    assert_int_equal(p->runs[0].source, SOURCE_IDS);
    assert_int_equal(p->runs[0].sample, SAMPLE_LAST);
    sched_commit(s, p);

    assert_int_equal(sched_plan(s, p), 1); /* tick 1 is in flight: its id goes from the last stage to the first */
    assert_int_equal(p->runs[0].n, 1);
    assert_int_equal(p->runs[0].kv_index, 10);
    assert_int_equal(p->runs[0].source, SOURCE_FROM_TICK);
    assert_int_equal(p->runs[0].from_tick, 1);
    sched_commit(s, p);
    assert_int_equal(sched_plan(s, p), 0); /* two of its rows are in flight */

    assert_int_equal(sched_retire(s, 2, NULL), STATUS_STALE);
    assert_int_equal(sched_retire(s, 1, NULL), STATUS_OK);
    assert_int_equal(sched_plan(s, p), 1);
    assert_int_equal(p->runs[0].kv_index, 11);
    assert_int_equal(p->runs[0].from_tick, 2);
    sched_commit(s, p);
    assert_int_equal(sched_retire(s, 2, NULL), STATUS_OK);
    assert_int_equal(sched_retire(s, 3, NULL), STATUS_OK);
    assert_int_equal(sched_plan(s, p), 1);
    assert_int_equal(p->runs[0].kv_index, 12);
    assert_int_equal(p->runs[0].source, SOURCE_IDS); /* the coordinator has its id by now */
    sched_commit(s, p);
    assert_int_equal(sched_plan(s, p), 0); /* ids for all four are on their way */
    assert_int_equal(sched_last_tick(s), 4);
    done(s, p);
}

static void an_answer_of_one_token_needs_no_row(void **state)
{
    (void)state;
    struct sched_plan *p;
    struct sched *s = with(&two_stages, &p);
    assert_int_equal(sched_add(s, (struct slot_ref){0, 1}, &(struct sched_sequence){.n_prompt = 5, .n_answer = 1, .order = 1, .limit = UINT32_MAX}), STATUS_OK);
    assert_int_equal(sched_plan(s, p), 1);
    sched_commit(s, p);
    assert_int_equal(sched_plan(s, p), 0);
    done(s, p);
}

static void a_removed_sequence_has_no_more_rows_and_its_slot_serves_another(void **state)
{
    (void)state;
    struct sched_plan *p;
    struct sched *s = with(&two_stages, &p);
    uint32_t position, in_flight;
    struct slot_ref first = {2, 5}, next = {2, 6};
    assert_int_equal(sched_add(s, first, &(struct sched_sequence){.n_prompt = 40, .n_answer = 9, .order = 1, .limit = UINT32_MAX}), STATUS_OK);
    assert_int_equal(sched_plan(s, p), 1);
    sched_commit(s, p);
    assert_int_equal(sched_remove(s, first), STATUS_OK);
    assert_int_equal(sched_remove(s, first), STATUS_SLOT_STALE);
    assert_int_equal(sched_add(s, next, &(struct sched_sequence){.n_prompt = 7, .n_answer = 2, .order = 2, .limit = UINT32_MAX}), STATUS_OK);
    assert_int_equal(sched_retire(s, 1, NULL), STATUS_OK); /* of the first: touches nobody */
    assert_int_equal(sched_progress(s, next, &position, &in_flight), STATUS_OK);
    assert_int_equal(position + in_flight, 0);
    assert_int_equal(sched_plan(s, p), 1);
    assert_int_equal(p->runs[0].ref.seq, 6);
    done(s, p);
}

static void a_paused_stream_stands_still(void **state)
{
    (void)state;
    struct sched_plan *p;
    struct sched *s = with(&two_stages, &p);
    struct slot_ref ref = {0, 1};
    assert_int_equal(sched_add(s, ref, &(struct sched_sequence){.n_prompt = 5, .n_answer = 100, .order = 1, .limit = UINT32_MAX}), STATUS_OK);
    assert_int_equal(sched_plan(s, p), 1);
    sched_commit(s, p);
    assert_int_equal(sched_pause(s, ref, 1), STATUS_OK);
    assert_int_equal(sched_plan(s, p), 0);
    assert_int_equal(sched_pause(s, ref, 0), STATUS_OK);
    assert_int_equal(sched_plan(s, p), 1);
    done(s, p);
}

static void a_reset_starts_the_ticks_anew_and_keeps_the_costs(void **state)
{
    (void)state;
    struct sched_plan *p;
    struct sched *s = with(&two_stages, &p);
    assert_int_equal(sched_add(s, (struct slot_ref){0, 1}, &(struct sched_sequence){.n_prompt = 500, .n_answer = 100, .order = 1, .limit = UINT32_MAX}), STATUS_OK);
    double cost = 0;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(sched_plan(s, p), 1);
        cost = i == 0 ? p->cost_us[0] : cost;
        sched_commit(s, p);
    }
    assert_int_equal(sched_plan(s, p), 0); /* the window is full */
    sched_reset(s);
    assert_int_equal(sched_plan(s, p), 0);
    assert_int_equal(sched_stats(s).in_flight, 0);
    assert_int_equal(sched_retire(s, 1, NULL), STATUS_STALE);
    assert_int_equal(sched_add(s, (struct slot_ref){0, 2}, &(struct sched_sequence){.n_prompt = 500, .n_answer = 100, .order = 1, .limit = UINT32_MAX}), STATUS_OK);
    assert_int_equal(sched_plan(s, p), 1);
    assert_int_equal(p->tick, 1);
    assert_true(p->cost_us[0] == cost);
    done(s, p);
}

static void pieces_fill_tiles_unless_they_are_the_last(void **state)
{
    (void)state;
    struct sched_plan *p;
    struct sched *s = with(&two_stages, &p);
    uint64_t oldest = 1;
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(sched_add(s, (struct slot_ref){i, i + 1}, &(struct sched_sequence){.n_prompt = 300 + 7 * i, .n_answer = 5, .order = i, .limit = UINT32_MAX}), STATUS_OK);
    int n_cut = 0;
    while (sched_plan(s, p) || sched_stats(s).in_flight) {
        if (sched_stats(s).in_flight == 3 || !sched_plan(s, p)) {
            assert_int_equal(sched_retire(s, oldest++, NULL), STATUS_OK);
            continue;
        }
        const struct sched_run *last = &p->runs[p->n_runs - 1];
        if (last->is_piece && last->sample == SAMPLE_NONE) {
            assert_true(p->n_rows % SCHED_TILE_ROWS == 0 || last->n < SCHED_TILE_ROWS); /* less than a tile fitted */
            n_cut += p->n_rows % SCHED_TILE_ROWS == 0;
        }
        sched_commit(s, p);
    }
    assert_true(n_cut >= 4);
    done(s, p);
}

/* --- positions, limits, cut points ------------------------------------------------------------------------------------------------- */

static void add(struct sched *s, struct slot_ref ref, struct sched_sequence q)
{
    q.limit = q.limit ? q.limit : UINT32_MAX;
    assert_int_equal(sched_add(s, ref, &q), STATUS_OK);
}

static void send_next(struct sched *s, struct sched_plan *p, uint32_t n, uint32_t kv_index)
{
    assert_int_equal(sched_plan(s, p), 1);
    assert_int_equal(p->n_runs, 1);
    assert_int_equal(p->runs[0].n, n);
    assert_int_equal(p->runs[0].kv_index, kv_index);
    sched_commit(s, p);
}

static void a_cached_prefix_is_not_read(void **state)
{
    (void)state;
    struct sched_plan *p;
    struct sched *s = with(&two_stages, &p);
    add(s, (struct slot_ref){0, 1}, (struct sched_sequence){.position = 64, .n_prompt = 70, .n_answer = 3});
    send_next(s, p, 6, 64);
    assert_int_equal(p->shape.reads, 6 * 64);
    send_next(s, p, 1, 70);
    done(s, p);
}

static void no_row_is_planned_at_or_beyond_the_limit(void **state)
{
    (void)state;
    struct sched_plan *p;
    struct sched *s = with(&two_stages, &p);
    struct slot_ref ref = {0, 1};
    add(s, ref, (struct sched_sequence){.n_prompt = 20, .n_answer = 9, .limit = 12});
    send_next(s, p, 12, 0);
    assert_int_equal(sched_plan(s, p), 0);
    assert_int_equal(sched_stats(s).n_starved, 1);
    assert_int_equal(sched_retire(s, 1, NULL), STATUS_OK);
    assert_int_equal(sched_set_limit(s, ref, 21), STATUS_OK);
    send_next(s, p, 8, 12);
    send_next(s, p, 1, 20);
    assert_int_equal(sched_retire(s, 2, NULL), STATUS_OK);
    assert_int_equal(sched_retire(s, 3, NULL), STATUS_OK);
    assert_int_equal(sched_plan(s, p), 0);
    assert_int_equal(sched_set_limit(s, ref, 0), STATUS_OK); /* it may fall below what is planned */
    assert_int_equal(sched_plan(s, p), 0);
    assert_int_equal(sched_set_limit(s, ref, UINT32_MAX), STATUS_OK);
    assert_int_equal(sched_stats(s).n_starved, 0);
    send_next(s, p, 1, 21);
    assert_int_equal(sched_set_limit(s, (struct slot_ref){0, 2}, 5), STATUS_SLOT_STALE);
    done(s, p);
}

static void no_piece_crosses_a_cut_point(void **state)
{
    (void)state;
    struct sched_plan *p;
    struct sched *s = with(&two_stages, &p);
    struct slot_ref ref = {0, 1};
    add(s, ref, (struct sched_sequence){.n_prompt = 50, .n_answer = 9});
    assert_int_equal(sched_set_cut(s, ref, 21), STATUS_OK);
    send_next(s, p, 21, 0);
    assert_int_equal(p->runs[0].sample, SAMPLE_NONE);
    send_next(s, p, 29, 21); /* that one is passed */
    assert_int_equal(p->runs[0].sample, SAMPLE_LAST);
    assert_int_equal(sched_set_cut(s, (struct slot_ref){1, 2}, 5), STATUS_SLOT_STALE);
    done(s, p);
}

/* --- the host, and runs of several rows ------------------------------------------------------------------------------------------------ */

static void a_row_that_needs_the_host_waits_for_its_result_and_its_mask(void **state)
{
    (void)state;
    struct sched_plan *p;
    struct sched *s = with(&two_stages, &p);
    struct slot_ref ref = {0, 1};
    add(s, ref, (struct sched_sequence){.n_prompt = 10, .n_answer = 9, .needs_host = 1});
    send_next(s, p, 9, 0); /* the last row gives an id */
    assert_int_equal(sched_plan(s, p), 0);
    assert_int_equal(sched_host_ready(s, ref), STATUS_OK);
    send_next(s, p, 1, 9);
    assert_int_equal(sched_plan(s, p), 0);
    assert_int_equal(sched_host_ready(s, ref), STATUS_OK); /* the mask alone is not enough */
    assert_int_equal(sched_plan(s, p), 0);
    assert_int_equal(sched_retire(s, 1, NULL), STATUS_OK);
    assert_int_equal(sched_plan(s, p), 0);
    assert_int_equal(sched_retire(s, 2, NULL), STATUS_OK);
    send_next(s, p, 1, 10);
    assert_int_equal(p->runs[0].source, SOURCE_IDS);
    assert_int_equal(sched_retire(s, 3, NULL), STATUS_OK);
    assert_int_equal(sched_plan(s, p), 0); /* nor is the result */
    assert_int_equal(sched_host_ready(s, ref), STATUS_OK);
    send_next(s, p, 1, 11);
    assert_int_equal(sched_host_ready(s, (struct slot_ref){0, 2}), STATUS_SLOT_STALE);
    done(s, p);
}

static void rows_of_a_run_that_do_not_count_are_planned_again(void **state)
{
    (void)state;
    struct sched_plan *p;
    struct sched *s = with(&two_stages, &p);
    struct slot_ref ref = {0, 1};
    uint32_t position, in_flight;
    add(s, ref, (struct sched_sequence){.n_prompt = 10, .n_answer = 12, .run_rows = 4});
    send_next(s, p, 10, 0);
    send_next(s, p, 4, 10); /* at 10 for sure */
    assert_int_equal(p->shape.sampled, 4);
    assert_int_equal(sched_retire(s, 1, NULL), STATUS_OK);
    send_next(s, p, 4, 14); /* at 14 at most */
    assert_int_equal(sched_retire(s, 2, &(uint32_t){1}), STATUS_OK);
    assert_int_equal(sched_progress(s, ref, &position, &in_flight), STATUS_OK);
    assert_int_equal(position, 15);
    assert_int_equal(in_flight, 1);
    assert_int_equal(sched_retire(s, 3, &(uint32_t){2}), STATUS_OK);
    send_next(s, p, 4, 13);
    assert_int_equal(sched_retire(s, 4, &(uint32_t){9}), STATUS_OK); /* more than it had: all of them */
    send_next(s, p, 4, 17); /* the end is 21 */
    assert_int_equal(sched_plan(s, p), 0);
    assert_int_equal(sched_retire(s, 5, &(uint32_t){3}), STATUS_OK);
    send_next(s, p, 1, 20);
    done(s, p);
}

/* --- random runs against a plain model ------------------------------------------------------------------------------------------------ */

enum { SLOTS = 24 };

struct follower {
    struct slot_ref ref[SLOTS];
    uint32_t n_prompt[SLOTS], n_answer[SLOTS], next[SLOTS];
    uint64_t last[SLOTS];
    uint64_t oldest, newest, next_seq;
};

static void follow_plan(struct follower *f, const struct sched_options *o, const struct sched_plan *p)
{
    uint32_t rows = 0, seen = 0;
    assert_int_equal(p->tick, f->newest + 1);
    assert_true(p->n_runs > 0);
    for (uint32_t i = 0; i < p->n_runs; i++) {
        const struct sched_run *r = &p->runs[i];
        uint32_t s = r->ref.slot;
        assert_int_equal(f->ref[s].seq, r->ref.seq);
        assert_false(seen >> s & 1); /* one run a sequence */
        seen |= 1u << s;
        assert_int_equal(r->kv_index, f->next[s]);
        f->next[s] += r->n;
        rows += r->n;
        if (r->kv_index < f->n_prompt[s]) {
            assert_true(r->is_piece && r->source == SOURCE_IDS && f->next[s] <= f->n_prompt[s]);
            assert_int_equal(r->sample, f->next[s] == f->n_prompt[s] ? SAMPLE_LAST : SAMPLE_NONE);
        } else {
            assert_true(!r->is_piece && r->n == 1 && r->sample == SAMPLE_LAST);
            assert_true(f->next[s] <= f->n_prompt[s] + f->n_answer[s] - 1);
            assert_int_equal(r->source, f->last[s] >= f->oldest ? SOURCE_FROM_TICK : SOURCE_IDS);
            if (r->source == SOURCE_FROM_TICK)
                assert_int_equal(r->from_tick, f->last[s]);
        }
        f->last[s] = p->tick;
    }
    assert_int_equal(rows, p->n_rows);
    assert_true(rows <= o->max_rows);
    f->newest = p->tick;
    assert_true(f->newest - f->oldest + 1 <= o->n_stages + 1);
}

static void random_step(struct follower *f, struct sched *s, const struct sched_options *o, struct sched_plan *p, uint64_t r)
{
    uint32_t slot = (uint32_t)(r >> 8) % SLOTS;
    switch (r % 8) {
    case 0:
    case 1:
        if (f->ref[slot].seq)
            break;
        f->ref[slot] = (struct slot_ref){slot, f->next_seq++};
        f->n_prompt[slot] = 1 + (r >> 20) % (r & 256 ? 900 : 20);
        f->n_answer[slot] = 1 + (r >> 40) % 30;
        f->next[slot] = 0;
        f->last[slot] = 0;
        assert_int_equal(sched_add(s, f->ref[slot], &(struct sched_sequence){.n_prompt = f->n_prompt[slot], .n_answer = f->n_answer[slot], .order = f->next_seq, .limit = UINT32_MAX}), STATUS_OK);
        break;
    case 2:
        if (f->ref[slot].seq && (f->next[slot] == f->n_prompt[slot] + f->n_answer[slot] - 1 || (r >> 40) % 16 == 0)) {
            assert_int_equal(sched_remove(s, f->ref[slot]), STATUS_OK);
            f->ref[slot].seq = 0;
        }
        break;
    case 3:
    case 4:
        if (f->oldest <= f->newest) {
            for (uint32_t i = 0; i < o->n_stages; i++)
                sched_timing(s, i, f->oldest, 3000 + (double)(r >> 30) / 1e6);
            assert_int_equal(sched_retire(s, f->oldest++, NULL), STATUS_OK);
        }
        break;
    case 5:
        if (f->ref[slot].seq)
            assert_int_equal(sched_pause(s, f->ref[slot], r >> 20 & 1), STATUS_OK);
        break;
    default:
        if (sched_plan(s, p)) {
            follow_plan(f, o, p);
            sched_commit(s, p);
        }
    }
}

static void rows_are_planned_once_in_order_whatever_happens(void **state)
{
    (void)state;
    for (uint32_t n_stages = 1; n_stages <= 8; n_stages++) {
        struct sched_options o = two_stages;
        struct sched_plan *p;
        o.n_stages = n_stages;
        o.n_slots = SLOTS;
        struct sched *s = with(&o, &p);
        struct follower f = {.oldest = 1, .next_seq = 1};
        for (uint64_t i = 0; i < 5000; i++) {
            uint64_t r = rand_at(n_stages, i);
            if (r % 4001 == 0) { /* the epoch changes */
                sched_reset(s);
                f = (struct follower){.oldest = 1, .next_seq = f.next_seq};
            }
            random_step(&f, s, &o, p, r);
            const char *why;
            if (!sched__check(s, &why))
                fail_msg("step %d: %s", (int)i, why);
        }
        assert_true(f.next_seq > 100);
        done(s, p);
    }
}

/* --- purity --------------------------------------------------------------------------------------------------------------------- */

static struct sched *clone_of(const struct sched *s)
{
    struct sched *copy = malloc(sched_bytes(s));
    assert_non_null(copy);
    memcpy(copy, s, sched_bytes(s));
    return copy;
}

static void the_same_bytes_give_the_same_plan_and_are_not_written(void **state)
{
    (void)state;
    struct sched_options o = two_stages;
    struct sched_plan *p, *q;
    o.n_slots = SLOTS;
    struct sched *s = with(&o, &p);
    struct follower f = {.oldest = 1, .next_seq = 1};
    assert_int_equal(sched_plan_create(s, &q), STATUS_OK);
    for (uint64_t i = 0; i < 1500; i++) {
        struct sched *copy = clone_of(s);
        memset(q->scratch, (int)i, 2 * SLOTS * sizeof q->scratch[0]); /* what lies in the answer does not matter */
        int a = sched_plan(s, p), b = sched_plan(copy, q);
        assert_int_equal(a, b);
        assert_int_equal(memcmp(copy, s, sched_bytes(s)), 0);
        if (a) {
            assert_int_equal(p->n_runs, q->n_runs);
            assert_memory_equal(p->runs, q->runs, p->n_runs * sizeof p->runs[0]);
            assert_true(p->bank_us == q->bank_us && p->credit_us == q->credit_us && p->tau_us == q->tau_us);
        }
        free(copy);
        random_step(&f, s, &o, p, rand_at(77, i));
    }
    sched_plan_destroy(q);
    done(s, p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_prompt_is_read_whatever_the_limits_of_rows),
        cmocka_unit_test(a_prompt_is_read_whatever_ticks_have_taken),
        cmocka_unit_test(what_is_new_behind_a_long_prefix_is_read_however_little_it_is),
        cmocka_unit_test(of_two_prompts_that_are_nearly_alike_one_is_read),
        cmocka_unit_test(streams_that_could_fill_every_tick_leave_room_for_a_prompt),
        cmocka_unit_test(a_prompt_is_read_and_its_rows_follow_without_the_coordinator),
        cmocka_unit_test(an_answer_of_one_token_needs_no_row),
        cmocka_unit_test(a_removed_sequence_has_no_more_rows_and_its_slot_serves_another),
        cmocka_unit_test(a_paused_stream_stands_still),
        cmocka_unit_test(a_reset_starts_the_ticks_anew_and_keeps_the_costs),
        cmocka_unit_test(pieces_fill_tiles_unless_they_are_the_last),
        cmocka_unit_test(a_cached_prefix_is_not_read),
        cmocka_unit_test(no_row_is_planned_at_or_beyond_the_limit),
        cmocka_unit_test(no_piece_crosses_a_cut_point),
        cmocka_unit_test(a_row_that_needs_the_host_waits_for_its_result_and_its_mask),
        cmocka_unit_test(rows_of_a_run_that_do_not_count_are_planned_again),
        cmocka_unit_test(rows_are_planned_once_in_order_whatever_happens),
        cmocka_unit_test(the_same_bytes_give_the_same_plan_and_are_not_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
