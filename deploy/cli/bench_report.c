/* deploy/cli/bench_report.c - the results of `sluice bench` for people (a table) and for programs (JSON). */
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/config.h"
#include "deploy/cli/bench.h"
#include "deploy/cli/said.h"

static double per(double n, double of)
{
    return of > 0 ? n / of : 0;
}

static const char *length_text(const struct length *l, char *out, size_t size)
{
    if (l->kind == LENGTH_FIXED)
        snprintf(out, size, "%u", l->min);
    else
        snprintf(out, size, "%s%u-%u", l->kind == LENGTH_LOGNORMAL ? "lognormal:" : "", l->min, l->max);
    return out;
}

/* --- tables ----------------------------------------------------------------------------------------------------------------- */

static void print_head(FILE *f, const struct bench_options *o, const struct plan *p)
{
    fprintf(f, "server       %s%s", o->http.url, plan_path(p));
    if (p->o.model)
        fprintf(f, ", %s", said_plain(p->o.model).text);
    fputc('\n', f);
}

static void print_summary(FILE *f, const char *name, struct samples *s, int digits)
{
    struct summary m = samples_summary(s);
    fprintf(f, "%-12s %8zu %10.*f %10.*f %10.*f %10.*f %10.*f\n", name, m.n, digits, m.mean, digits, m.median, digits, m.p90, digits,
            m.p99, digits, m.max);
}

static void print_summary_head(FILE *f)
{
    fprintf(f, "\n%-12s %8s %10s %10s %10s %10s %10s\n", "ms", "n", "mean", "median", "p90", "p99", "max");
}

static void print_failures(FILE *f, const struct failures *x)
{
    for (uint32_t i = 0; i < x->n_kinds; i++)
        fprintf(f, "%-12s %llu x %s: %s\n", i ? "" : "failed", (unsigned long long)x->v[i].n, x->v[i].kind, x->v[i].example);
}

static void print_client(FILE *f, const struct client_cost *c)
{
    double part = per(c->cpu_s, c->wall_s);
    fprintf(f, "client       %.2f s CPU, %.1f %% of one core, %.1f us an event\n", c->cpu_s, part * 100,
            per(c->cpu_s * 1e6, (double)c->n_events));
    if (part > 0.8)
        fprintf(f, "             the client itself was busy: its figures may be worse than the server\n");
}

static void print_slo(FILE *f, const struct slo *o)
{
    const char *comma = "";
    const struct {
        const char *name;
        double ms;
    } all[] = {{"TTFT", o->ttft_ms}, {"each gap", o->itl_ms}, {"TPOT", o->tpot_ms}, {"E2E", o->e2e_ms}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (all[i].ms > 0) {
            fprintf(f, "%s%s <= %g ms", comma, all[i].name, all[i].ms);
            comma = ", ";
        }
}

static void print_load(FILE *f, const struct bench_options *o)
{
    char prompt[64], answer[64];
    if (o->rate > 0)
        fprintf(f, "load         open loop, %g requests/s (Poisson)", o->rate);
    else
        fprintf(f, "load         closed loop of %u", o->concurrency);
    fprintf(f, ", prompts of %s, answers of %s tokens, seed %llu\n", length_text(&o->prompt_tokens, prompt, sizeof prompt),
            length_text(&o->max_tokens, answer, sizeof answer), (unsigned long long)o->plan.seed);
}

void load_report(FILE *f, const struct bench_options *o, const struct plan *p, struct load_result *r, const struct client_cost *c)
{
    print_head(f, o, p);
    print_load(f, o);
    fprintf(f, "requests     %llu sent, %llu done, %llu failed (%llu of them refused with Retry-After) in %.2f s%s\n",
            (unsigned long long)r->n_sent, (unsigned long long)r->n_done, (unsigned long long)r->failures.n,
            (unsigned long long)r->n_refused, r->seconds, r->is_interrupted ? ", interrupted" : "");
    if (r->n_cut || r->n_retries)
        fprintf(f, "             %llu cut by the end, %llu refusals tried again\n", (unsigned long long)r->n_cut,
                (unsigned long long)r->n_retries);
    fprintf(f, "throughput   %.2f requests/s, %.2f output tokens/s, %.2f tokens/s with prompts; at most %u at the same time\n",
            per((double)r->n_done, r->seconds), per((double)r->output_tokens, r->seconds),
            per((double)(r->output_tokens + r->prompt_tokens), r->seconds), r->most_running);
    fprintf(f, "tokens       %llu prompt (%llu of them cached), %llu output\n", (unsigned long long)r->prompt_tokens,
            (unsigned long long)r->cached_tokens, (unsigned long long)r->output_tokens);
    if (slo_any(&o->slo)) {
        fprintf(f, "goodput      %.1f %% of the requests, %.2f requests/s met ", 100 * per((double)r->n_met, (double)r->n_sent),
                per((double)r->n_met, r->seconds));
        print_slo(f, &o->slo);
        fputc('\n', f);
    }
    print_failures(f, &r->failures);
    print_client(f, c);
    print_summary_head(f);
    print_summary(f, "TTFT", &r->ttft, 1);
    print_summary(f, "ITL", &r->itl, 2);
    print_summary(f, "TPOT", &r->tpot, 2);
    print_summary(f, "E2E", &r->e2e, 1);
    if (r->late.n)
        print_summary(f, "sent late", &r->late, 2);
}

static void print_stream(FILE *f, const char *name, const struct stall_stream *s, double share)
{
    fprintf(f, "%-12s %10.2f %10.2f %10.2f %10.3f", name, s->before, s->during, s->after, share);
    if (s->n_answers)
        fprintf(f, "   %u answers ended", s->n_answers);
    fputc('\n', f);
}

void stall_report(FILE *f, const struct bench_options *o, const struct plan *p, struct stall_result *r, const struct client_cost *c)
{
    char prompt[64], name[24];
    print_head(f, o, p);
    fprintf(f, "load         %u streams, then %u prompt%s of %s tokens", r->n_streams, r->n_prompts, r->n_prompts > 1 ? "s" : "",
            length_text(&o->prompt_tokens, prompt, sizeof prompt));
    if (r->prompt_tokens)
        fprintf(f, " (%lld by the server's count, %lld cached)", (long long)r->prompt_tokens, (long long)r->cached_tokens);
    fprintf(f, ", seed %llu\n", (unsigned long long)o->plan.seed);
    print_failures(f, &r->failures);
    print_client(f, c);
    if (!r->is_whole) {
        fprintf(f, "The run ended before the prompt was read: there is nothing to compare.\n");
        return;
    }
    fprintf(f, "\n%-12s %10s %10s %10s %10s\n", "tokens/s", "before", "during", "after", "kept");
    for (uint32_t i = 0; i < r->n_streams; i++) {
        snprintf(name, sizeof name, "stream %u", i);
        print_stream(f, name, &r->streams[i], per(r->streams[i].during, r->streams[i].before));
    }
    print_stream(f, "all", &r->total, r->share);
    print_summary_head(f);
    print_summary(f, "gaps before", &r->gaps_before, 2);
    print_summary(f, "gaps during", &r->gaps_during, 2);
    print_summary(f, "prompt TTFT", &r->ttft, 1);
    if (r->alone_ms > 0)
        fprintf(f, "\nread in %.2f s beside the streams, in %.2f s alone%s: %.2f times\n", r->during_s, r->alone_ms / 1000,
                r->n_prompts > 1 ? " each" : "", r->ratio);
}

/* --- JSON ------------------------------------------------------------------------------------------------------------------- */

static json_t *summary_json(struct samples *s)
{
    struct summary m = samples_summary(s);
    return json_pack("{s:I, s:f, s:f, s:f, s:f, s:f, s:f}", "n", (json_int_t)m.n, "mean", m.mean, "min", m.min, "median", m.median,
                     "p90", m.p90, "p99", m.p99, "max", m.max);
}

static json_t *length_json(const struct length *l)
{
    char text[64];
    return json_string(length_text(l, text, sizeof text));
}

static json_t *failures_json(const struct failures *x)
{
    json_t *all = json_object();
    for (uint32_t i = 0; i < x->n_kinds; i++)
        json_object_set_new(all, x->v[i].kind, json_pack("{s:I, s:s}", "n", (json_int_t)x->v[i].n, "example", x->v[i].example));
    return all;
}

/* What both scenarios tell. */
static json_t *head_json(const struct bench_options *o, const struct plan *p, const struct client_cost *c, const struct failures *x)
{
    json_t *v = json_object();
    json_object_set_new(v, "scenario", json_string(o->is_stall ? "stall" : "load"));
    json_object_set_new(v, "version", json_string(config_version()));
    json_object_set_new(v, "time", json_integer(clock_wall_s()));
    json_object_set_new(v, "server", json_pack("{s:s, s:s, s:s?}", "url", o->http.url, "path", plan_path(p), "model", p->o.model));
    json_object_set_new(v, "prompts",
                        json_pack("{s:o, s:o, s:b, s:I, s:f, s:f, s:I, s:f}", "prompt_tokens", length_json(&o->prompt_tokens),
                                  "max_tokens", length_json(&o->max_tokens), "ids", p->o.has_ids, "shared_prefix",
                                  (json_int_t)p->o.shared_prefix, "tokens_per_word", p->tokens_per_word, "tokens_around",
                                  p->tokens_around, "seed", (json_int_t)p->o.seed, "temperature", p->o.temperature));
    json_object_set_new(v, "failed", json_integer((json_int_t)x->n));
    json_object_set_new(v, "failures", failures_json(x));
    json_object_set_new(v, "client", json_pack("{s:f, s:f, s:I, s:f}", "cpu_s", c->cpu_s, "wall_s", c->wall_s, "events",
                                               (json_int_t)c->n_events, "cpu_us_per_event",
                                               per(c->cpu_s * 1e6, (double)c->n_events)));
    return v;
}

static json_t *goodput_json(const struct bench_options *o, const struct load_result *r)
{
    const struct slo *s = &o->slo;
    if (!slo_any(s))
        return json_null();
    return json_pack("{s:{s:f, s:f, s:f, s:f}, s:I, s:f, s:f}", "slo_ms", "ttft", s->ttft_ms, "itl", s->itl_ms, "tpot", s->tpot_ms,
                     "e2e", s->e2e_ms, "met", (json_int_t)r->n_met, "share", per((double)r->n_met, (double)r->n_sent),
                     "requests_per_s", per((double)r->n_met, r->seconds));
}

json_t *load_report_json(const struct bench_options *o, const struct plan *p, struct load_result *r, const struct client_cost *c)
{
    json_t *v = head_json(o, p, c, &r->failures);
    json_object_set_new(v, "loop", json_pack("{s:s, s:f, s:I, s:I, s:f, s:b}", "kind", o->rate > 0 ? "open" : "closed", "rate", o->rate,
                                             "concurrency", (json_int_t)o->concurrency, "requests", (json_int_t)o->n_requests,
                                             "duration_s", o->duration_s, "retry", o->retry));
    json_object_set_new(v, "seconds", json_real(r->seconds));
    json_object_set_new(v, "interrupted", json_boolean(r->is_interrupted));
    json_object_set_new(v, "requests",
                        json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "sent", (json_int_t)r->n_sent, "done", (json_int_t)r->n_done,
                                  "failed", (json_int_t)r->failures.n, "refused", (json_int_t)r->n_refused, "retries",
                                  (json_int_t)r->n_retries, "cut", (json_int_t)r->n_cut, "most_running", (json_int_t)r->most_running));
    json_object_set_new(v, "tokens", json_pack("{s:I, s:I, s:I}", "prompt", (json_int_t)r->prompt_tokens, "cached",
                                               (json_int_t)r->cached_tokens, "output", (json_int_t)r->output_tokens));
    json_object_set_new(v, "throughput",
                        json_pack("{s:f, s:f, s:f}", "requests_per_s", per((double)r->n_done, r->seconds), "output_tokens_per_s",
                                  per((double)r->output_tokens, r->seconds), "total_tokens_per_s",
                                  per((double)(r->output_tokens + r->prompt_tokens), r->seconds)));
    json_object_set_new(v, "goodput", goodput_json(o, r));
    json_object_set_new(v, "ttft_ms", summary_json(&r->ttft));
    json_object_set_new(v, "itl_ms", summary_json(&r->itl));
    json_object_set_new(v, "tpot_ms", summary_json(&r->tpot));
    json_object_set_new(v, "e2e_ms", summary_json(&r->e2e));
    json_object_set_new(v, "late_ms", summary_json(&r->late));
    return v;
}

static json_t *stream_json(const struct stall_stream *s, double share)
{
    return json_pack("{s:f, s:f, s:f, s:f, s:I}", "before", s->before, "during", s->during, "after", s->after, "share_kept", share,
                     "answers_ended", (json_int_t)s->n_answers);
}

json_t *stall_report_json(const struct bench_options *o, const struct plan *p, struct stall_result *r, const struct client_cost *c)
{
    json_t *v = head_json(o, p, c, &r->failures), *streams = json_array();
    for (uint32_t i = 0; r->is_whole && i < r->n_streams; i++)
        json_array_append_new(streams, stream_json(&r->streams[i], per(r->streams[i].during, r->streams[i].before)));
    json_object_set_new(v, "whole", json_boolean(r->is_whole));
    json_object_set_new(v, "windows_s", json_pack("{s:f, s:f, s:f}", "before", o->before_s, "during", r->during_s, "after", o->after_s));
    json_object_set_new(v, "streams", streams);
    json_object_set_new(v, "stream_lengths", json_pack("{s:o, s:o}", "prompt_tokens", length_json(&o->stream_prompt), "max_tokens",
                                                       length_json(&o->stream_tokens)));
    json_object_set_new(v, "total", stream_json(&r->total, r->share));
    json_object_set_new(v, "share_kept", json_real(r->share));
    json_object_set_new(v, "share_kept_min", json_real(r->min_share));
    json_object_set_new(v, "gaps_before_ms", summary_json(&r->gaps_before));
    json_object_set_new(v, "gaps_during_ms", summary_json(&r->gaps_during));
    json_object_set_new(v, "long_prompts",
                        json_pack("{s:I, s:I, s:I, s:o, s:f, s:f}", "n", (json_int_t)r->n_prompts, "prompt_tokens",
                                  (json_int_t)r->prompt_tokens, "cached_tokens", (json_int_t)r->cached_tokens, "ttft_ms",
                                  summary_json(&r->ttft), "alone_ms", r->alone_ms, "ratio", r->ratio));
    return v;
}
