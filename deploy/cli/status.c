#include "deploy/cli/status.h"

#include <limits.h>
#include <string.h>

#include "deploy/cli/said.h"

/* Use: str(o, key).text. */
static struct said str(const json_t *o, const char *key)
{
    return said_text(json_object_get(o, key), INT_MAX);
}

/* For a column of so many bytes. */
static struct said cut(const json_t *o, const char *key, int most)
{
    return said_text(json_object_get(o, key), most);
}

static long long whole(const json_t *v)
{
    const int64_t far = 1ll << 62; /* a difference of two is still a number */
    return said_whole(v, -far, far);
}

static long long num(const json_t *o, const char *key)
{
    return whole(json_object_get(o, key));
}

static double ms(const json_t *o, const char *key)
{
    return json_number_value(json_object_get(o, key)) / 1000;
}

static void print_ticks(const json_t *t, FILE *f)
{
    fprintf(f, "ticks      sent %lld, %lld of %lld in flight; %lld streams, %lld readers, %lld without blocks\n", num(t, "sent"),
            num(t, "in_flight"), num(t, "window"), num(t, "streams"), num(t, "readers"), num(t, "starved"));
    fprintf(f, "plan       stream period %.1f ms, tick budget %.1f ms, bank %.1f of %.1f ms%s\n", ms(t, "period_us"),
            ms(t, "budget_us"), ms(t, "bank_us"), ms(t, "bank_bound_us"),
            json_is_true(json_object_get(t, "stall_unmet")) ? "; DECODING ALONE BREAKS --max-stall-ms" : "");
}

static void print_service(const json_t *s, FILE *f)
{
    const json_t *m = json_object_get(s, "model"), *r = json_object_get(s, "requests"), *q = json_object_get(s, "queue"),
                 *b = json_object_get(s, "blocks");
    const char *state = json_is_true(json_object_get(s, "ready"))      ? "ready"
                        : json_is_true(json_object_get(s, "draining")) ? "DRAINING"
                                                                       : "NOT READY";
    fprintf(f, "%s: %s, epoch %lld, up %.0f s, %s\n", str(m, "id").text, state, num(s, "epoch"),
            json_number_value(json_object_get(s, "uptime_s")), str(s, "version").text);
    if (num(s, "age_ms") > 0)
        fprintf(f, "THE COORDINATOR DOES NOT ANSWER: these figures are %.1f s old\n", (double)num(s, "age_ms") / 1000);
    if (json_object_get(s, "not_ready")) {
        fprintf(f, "NOT READY: %s", str(s, "not_ready").text);
        if (num(s, "lost_ms") > 0)
            fprintf(f, " (for %.1f s)", (double)num(s, "lost_ms") / 1000);
        fputc('\n', f);
    }
    fprintf(f, "model      %s, %lld layers, context %lld, vocabulary %lld\n", str(m, "architecture").text, num(m, "layers"),
            num(m, "context"), num(m, "vocabulary"));
    fprintf(f, "requests   queued %lld  reading %lld  decoding %lld  parked %lld  |  accepted %lld  done %lld  failed %lld  "
            "cancelled %lld\n",
            num(r, "queued"), num(r, "reading"), num(r, "decoding"), num(r, "parked"), num(r, "accepted"), num(r, "done"),
            num(r, "failed"), num(r, "cancelled"));
    fprintf(f, "queue      %lld of %lld requests, %lld of %lld tokens, oldest %lld ms\n", num(q, "requests"),
            num(q, "limit_requests"), num(q, "tokens"), num(q, "limit_tokens"), num(q, "oldest_ms"));
    fprintf(f, "KV blocks  %lld of %lld positions: free %lld  cached %lld  live %lld  draining %lld  |  promised %lld  evicted "
            "%lld\n",
            num(b, "total"), num(b, "size"), num(b, "free"), num(b, "cached"), num(b, "live"), num(b, "draining"),
            num(b, "promised"), num(b, "evicted"));
    print_ticks(json_object_get(s, "ticks"), f);
}

static void print_stages(const json_t *s, FILE *f)
{
    size_t i;
    json_t *g;
    fprintf(f, "\n%-6s %-12s %-8s %-10s %-9s %-12s %9s %9s %9s %6s %6s %9s\n", "stage", "host", "pid", "state", "layers",
            "backend", "weights", "KV", "restarts", "busy", "waits", "hop");
    json_array_foreach(json_object_get(s, "stages"), i, g) {
        char layers[32];
        const json_t *range = json_object_get(g, "layers");
        snprintf(layers, sizeof layers, "%lld..%lld", whole(json_array_get(range, 0)),
                 whole(json_array_get(range, 1)) - 1); /* people count both ends, as sluice model */
        fprintf(f, "%-6lld %-12s %-8lld %-10s %-9s %-12s %5lld MiB %5lld MiB %9lld %4.0f %% %4.0f %% %6.2f ms\n", num(g, "stage"),
                cut(g, "host", 12).text, num(g, "pid"), str(g, "state").text, layers, str(g, "backend").text, num(g, "weight_bytes") >> 20,
                num(g, "kv_bytes") >> 20, num(g, "restarts"), json_number_value(json_object_get(g, "busy_ratio")) * 100,
                json_number_value(json_object_get(g, "bubble_ratio")) * 100, ms(g, "hop_us"));
    }
}

static void print_slots(const json_t *s, FILE *f)
{
    enum { MOST_ROWS = 64 };
    size_t i, n_free = 0, n_rows = 0;
    json_t *g;
    fprintf(f, "\n%-6s %-10s %-28s %8s %8s %8s %9s %8s\n", "slot", "state", "request", "prompt", "cached", "read", "generated",
            "age");
    json_array_foreach(json_object_get(s, "slots"), i, g) {
        if (strcmp(str(g, "state").text, "free") == 0) {
            n_free++;
            continue;
        }
        if (++n_rows > MOST_ROWS)
            continue;
        fprintf(f, "%-6lld %-10s %-28s %8lld %8lld %8lld %9lld %5.1f s\n", num(g, "slot"), str(g, "state").text, cut(g, "request", 28).text,
                num(g, "prompt_tokens"), num(g, "cached_tokens"), num(g, "read_tokens"), num(g, "generated_tokens"),
                (double)num(g, "age_ms") / 1000);
    }
    if (n_rows > MOST_ROWS)
        fprintf(f, "... and %zu more (--json has them all)\n", n_rows - MOST_ROWS);
    fprintf(f, "%zu of %zu slots are free\n", n_free, json_array_size(json_object_get(s, "slots")));
}

void status_print(const json_t *s, FILE *f)
{
    print_service(s, f);
    print_stages(s, f);
    print_slots(s, f);
}

enum status status_run(const struct http *h, int json, struct error *err)
{
    json_t *s = NULL;
    TRY(http_get(h, "/v1/status", &s, err));
    if (json) {
        json_dumpf(s, stdout, JSON_INDENT(2));
        putchar('\n');
    } else {
        status_print(s, stdout);
    }
    json_decref(s);
    return STATUS_OK;
}
