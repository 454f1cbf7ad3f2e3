#include <math.h>

#include "common/base/clock.h"
#include "coordinator/admission_impl.h"

/* Of the time until a place is free one wants to be sure, not right on average: mean + SURE deviations is the 95th
 * percentile of a normal sum. */
static const double SURE = 1.65;
static const double SLACK = 0.1; /* of an interval: so that who returns just before a departure does not miss it */
enum { MOST_S = 60, SAMPLES = 10 }; /* the means forget over about so many */

void admission__tell_time(struct admission *a, int64_t now_ns)
{
    if (now_ns > a->measured.now_ns)
        a->measured.now_ns = now_ns;
}

static double share_of(uint32_t n)
{
    return n < SAMPLES ? 1.0 / n : 1.0 / SAMPLES;
}

/* The rate is that of busy time: a pause in service of more than a few seconds is left out, as no work was there. */
void admission_served(struct admission *a, uint32_t n_tokens, int64_t now_ns)
{
    struct measured *m = &a->measured;
    admission__tell_time(a, now_ns);
    if (m->rate_from_ns == 0 || now_ns - m->rate_from_ns > 4 * NS_PER_S) {
        m->rate_from_ns = now_ns;
        m->rate_tokens = 0;
        return;
    }
    m->rate_tokens += n_tokens;
    int64_t span = now_ns - m->rate_from_ns;
    if (span < NS_PER_S)
        return;
    double rate = (double)m->rate_tokens * 1e9 / (double)span;
    m->tokens_per_s = m->tokens_per_s == 0 ? rate : 0.7 * m->tokens_per_s + 0.3 * rate;
    m->rate_from_ns = now_ns;
    m->rate_tokens = 0;
}

void admission_answered(struct admission *a, uint32_t n_tokens)
{
    struct measured *m = &a->measured;
    m->answer_mean = m->answer_mean == 0 ? n_tokens : 0.9 * m->answer_mean + 0.1 * n_tokens;
}

uint32_t admission_mean_answer(const struct admission *a)
{
    return (uint32_t)ceil(a->measured.answer_mean);
}

void admission__note_arrival(struct admission *a)
{
    a->measured.left_ns = a->measured.now_ns;
    a->measured.queue_held = 0;
}

/* A place is free. Intervals count only while the queue was never empty: then they are the service's, not the arrivals'. */
void admission__note_departure(struct admission *a, struct admission_item *item)
{
    struct measured *m = &a->measured;
    struct client *c = &a->client[item->client_entry];
    if (item->resumed)
        return; /* it held none */
    if (m->queue_held) {
        double off = (double)(m->now_ns - m->left_ns) / 1e9 - m->interval_s, share = share_of(++m->n_intervals);
        m->interval_s += share * off;
        m->variance = (1 - share) * (m->variance + share * off * off);
    }
    m->left_ns = m->now_ns;
    m->queue_held = a->n_first > 0;
    m->n_promised -= m->n_promised > 0;
    c->n_promised -= c->n_promised > 0;
}

void admission__note_end(struct admission *a, const struct admission_item *item)
{
    struct measured *m = &a->measured;
    m->finished_prompt += share_of(++m->n_ended) * (item->n_prompt - m->finished_prompt);
}

/* Seconds between departures, and their deviation. *mean 0: nothing was measured. */
static void predict_interval(const struct admission *a, double *mean, double *deviation)
{
    const struct measured *m = &a->measured;
    uint32_t n = a->n_waiting + a->n_running;
    double longest = n ? (double)a->all_answer_max / n : 0;
    double answer = m->answer_mean > 0 && m->answer_mean < longest ? m->answer_mean : longest;
    double work = (n ? (double)a->all_prompt / n : 0) + answer;
    if (m->n_intervals == 0) {
        *mean = m->tokens_per_s > 0 ? work / m->tokens_per_s : 0;
        *deviation = *mean / 2;
        return;
    }
    /* What was measured, for requests as large as those that are here now. */
    double before = m->finished_prompt + (m->answer_mean > 0 ? m->answer_mean : longest);
    double ratio = n && m->n_ended && before > 0 ? work / before : 1;
    ratio = ratio < 0.25 ? 0.25 : ratio > 4 ? 4 : ratio;
    *mean = m->interval_s * ratio;
    *deviation = sqrt(m->variance) * ratio + *mean / (2 * (m->n_intervals + 1.0)); /* few samples tell little */
}

static int whole_seconds(double s)
{
    return s >= MOST_S ? MOST_S : s <= 1 ? 1 : (int)ceil(s);
}

/* Until the n-th departure from now. One that is overdue is expected after as long again. */
static double until_departure(const struct admission *a, double n, double mean, double deviation)
{
    double elapsed = (double)(a->measured.now_ns - a->measured.left_ns) / 1e9;
    return fabs(mean - elapsed) + (n - 1) * mean + SURE * sqrt(n) * deviation + SLACK * mean;
}

int admission__promise_place(struct admission *a, uint32_t n_departures)
{
    struct measured *m = &a->measured;
    double mean, deviation;
    predict_interval(a, &mean, &deviation);
    if (mean <= 0)
        return 1; /* nothing was measured: the work may be short */
    double most = MOST_S / mean + 1; /* who is told the longest time is not promised a certain departure */
    m->n_promised = m->n_promised + n_departures < most ? m->n_promised + n_departures : (uint32_t)most;
    double n = m->n_promised > n_departures ? m->n_promised : n_departures;
    return whole_seconds(until_departure(a, n, mean, deviation));
}

/* Its own requests leave the queue in its share of the departures or, if it has all its slots, when one of them ends. */
int admission__promise_client(struct admission *a, struct client *c)
{
    double mean, deviation, every = 0;
    predict_interval(a, &mean, &deviation);
    if (mean <= 0)
        return 1;
    if (admission__held(a, c))
        every = (double)a->n_running / c->n_running;
    for (int k = 0; k < N_CLASSES && !admission__held(a, c); k++)
        every += a->class[k].flows.n;
    every = every < 1 ? 1 : every;
    if (c->n_promised * every * mean < MOST_S)
        c->n_promised++;
    return whole_seconds(until_departure(a, c->n_promised * every, mean, deviation));
}

int admission_retry_after_s(const struct admission *a)
{
    double mean, deviation;
    predict_interval(a, &mean, &deviation);
    int full = a->n_first >= a->limits.queue_requests || a->n_first_tokens >= a->limits.queue_tokens;
    double n = full ? a->measured.n_promised + 1.0 : a->n_waiting;
    if (mean <= 0 || n == 0)
        return 1;
    return whole_seconds(until_departure(a, n, mean, deviation));
}
