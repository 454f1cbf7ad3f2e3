#include "tests/sim/share.h"

#include <math.h>

/* A small model on a CPU: weights are read in 8 ms over all stages, a prompt row costs 0.3 ms, the head 0.1 ms a row. */
struct sim_options pipeline_of(uint32_t n_stages, double share)
{
    struct sim_options o = {.noise_low = 1, .noise_high = 1, .seed = 7 + n_stages};
    o.sched = (struct sched_options){.n_stages = n_stages, .n_slots = 24, .max_rows = 512, .decode_share = share,
                                     .max_stall_us = 250e3, .max_tick_us = 250e3, .delta_us = 100, .lambda_us = 100};
    for (uint32_t i = 0; i < n_stages; i++)
        o.stage[i] = sim_stage(8000.0 / n_stages, 300.0 / n_stages, i + 1 == n_stages ? 100 : 0, 30.0 / n_stages);
    return o;
}

struct sim_options case_pipeline(uint32_t n_stages)
{
    struct sim_options o = {.noise_low = 1, .noise_high = 1, .seed = n_stages, .learn = 1};
    o.sched = (struct sched_options){.n_stages = n_stages, .n_slots = 32, .max_rows = 512, .decode_share = 0.5,
                                     .max_stall_us = 200e3, .max_tick_us = 200e3, .delta_us = 50, .lambda_us = 50};
    for (uint32_t i = 0; i < n_stages; i++)
        o.stage[i] = sim_straight_stage(4000, 100, 250);
    return o;
}

/* Streams that decode from the start, then prompts whose answers are one token (so that the streams stay the same). */
uint32_t streams_and_prompts(struct sim_request *r, uint32_t n_prompts, uint32_t length)
{
    uint32_t n = 0;
    for (; n < N_STREAMS; n++)
        r[n] = (struct sim_request){.arrives_us = 0, .n_prompt = 32, .n_answer = N_TOKENS};
    for (uint32_t i = 0; i < n_prompts; i++)
        r[n++] = (struct sim_request){.arrives_us = 300e3 + 1e3 * i, .n_prompt = length, .n_answer = 1};
    return n;
}

double alone_us(const struct sim_result *alone, uint32_t stream, uint32_t i, uint32_t j)
{
    return alone->tokens[stream].at_us[j] - alone->tokens[stream].at_us[i];
}

/* In a window of time T a stream has at least floor(s*(T - W)/P0) - 2 tokens: n tokens take at most (n + 2)*P0/s + W. */
double share_excess_us(const struct sim_options *o, const struct sim_result *r, const struct sim_result *alone, double share)
{
    double worst = -INFINITY;
    for (uint32_t s = 0; s < N_STREAMS; s++)
        for (uint32_t i = 1; i < N_TOKENS; i++)
            for (uint32_t j = i + 1; j < N_TOKENS; j++) {
                double window = r->tokens[s].at_us[j] - r->tokens[s].at_us[i];
                double alone_window = alone_us(alone, s, i, j), period = alone_window / (j - i);
                double most = (alone_window + 2 * period) / share * o->noise_high + r->bank_bound_us;
                worst = fmax(worst, window - most);
            }
    return worst;
}

double kept_share(const struct sim_result *r, const struct sim_result *alone, double from_us, uint32_t n)
{
    double least = INFINITY;
    for (uint32_t s = 0; s < N_STREAMS; s++) {
        uint32_t i = 0;
        while (i + 1 < r->tokens[s].n && r->tokens[s].at_us[i] < from_us)
            i++;
        uint32_t j = i + n < r->tokens[s].n ? i + n : r->tokens[s].n - 1;
        least = fmin(least, alone_us(alone, s, i, j) / alone_us(r, s, i, j));
    }
    return least;
}

void run_alone(const struct sim_options *o, struct sim_result *out)
{
    struct sim_request r[N_STREAMS];
    struct sim_options quiet = *o;
    quiet.noise_low = quiet.noise_high = 1;
    quiet.spikes = 0;
    sim_run(&quiet, r, streams_and_prompts(r, 0, 0), out);
}

double longest_gap_us(const struct sim_result *r, uint32_t first, uint32_t end)
{
    double most = 0;
    for (uint32_t s = first; s < end; s++)
        for (uint32_t i = 1; i < r->tokens[s].n; i++)
            most = fmax(most, r->tokens[s].at_us[i] - r->tokens[s].at_us[i - 1]);
    return most;
}

double rate_between(const struct sim_tokens *t, double from_us, double to_us)
{
    uint32_t first = 0;
    while (first < t->n && t->at_us[first] < from_us)
        first++;
    uint32_t end = first;
    while (end < t->n && t->at_us[end] <= to_us)
        end++;
    return end - first < 2 ? 0 : (end - first - 1) / (t->at_us[end - 1] - t->at_us[first]);
}
