/* deploy/cli/status.c - `sluice status`: /v1/status as a table for people. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "deploy/cli/cli.h"

static const char *str(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "-";
}

static long long num(const json_t *o, const char *key)
{
    return (long long)json_number_value(json_object_get(o, key));
}

static double ms(const json_t *o, const char *key)
{
    return json_number_value(json_object_get(o, key)) / 1000;
}

static void print_ticks(const json_t *t)
{
    printf("ticks      sent %lld, %lld of %lld in flight; %lld streams, %lld readers, %lld without blocks\n", num(t, "sent"),
           num(t, "in_flight"), num(t, "window"), num(t, "streams"), num(t, "readers"), num(t, "starved"));
    printf("plan       stream period %.1f ms, tick budget %.1f ms, bank %.1f of %.1f ms%s\n", ms(t, "period_us"),
           ms(t, "budget_us"), ms(t, "bank_us"), ms(t, "bank_bound_us"),
           json_is_true(json_object_get(t, "stall_unmet")) ? "; DECODING ALONE BREAKS --max-stall-ms" : "");
}

static void print_service(const json_t *s)
{
    const json_t *m = json_object_get(s, "model"), *r = json_object_get(s, "requests"), *q = json_object_get(s, "queue"),
                 *b = json_object_get(s, "blocks");
    const char *state = json_is_true(json_object_get(s, "ready"))      ? "ready"
                        : json_is_true(json_object_get(s, "draining")) ? "DRAINING"
                                                                       : "NOT READY";
    printf("%s: %s, epoch %lld, up %.0f s, %s\n", str(m, "id"), state, num(s, "epoch"),
           json_number_value(json_object_get(s, "uptime_s")), str(s, "version"));
    if (num(s, "age_ms") > 0)
        printf("THE COORDINATOR DOES NOT ANSWER: these figures are %.1f s old\n", (double)num(s, "age_ms") / 1000);
    if (json_object_get(s, "not_ready")) {
        printf("NOT READY: %s", str(s, "not_ready"));
        if (num(s, "lost_ms") > 0)
            printf(" (for %.1f s)", (double)num(s, "lost_ms") / 1000);
        putchar('\n');
    }
    printf("model      %s, %lld layers, context %lld, vocabulary %lld\n", str(m, "architecture"), num(m, "layers"),
           num(m, "context"), num(m, "vocabulary"));
    printf("requests   queued %lld  reading %lld  decoding %lld  parked %lld  |  accepted %lld  done %lld  failed %lld  "
           "cancelled %lld\n",
           num(r, "queued"), num(r, "reading"), num(r, "decoding"), num(r, "parked"), num(r, "accepted"), num(r, "done"),
           num(r, "failed"), num(r, "cancelled"));
    printf("queue      %lld of %lld requests, %lld of %lld tokens, oldest %lld ms\n", num(q, "requests"),
           num(q, "limit_requests"), num(q, "tokens"), num(q, "limit_tokens"), num(q, "oldest_ms"));
    printf("KV blocks  %lld of %lld positions: free %lld  cached %lld  live %lld  draining %lld  |  promised %lld  evicted "
           "%lld\n",
           num(b, "total"), num(b, "size"), num(b, "free"), num(b, "cached"), num(b, "live"), num(b, "draining"),
           num(b, "promised"), num(b, "evicted"));
    print_ticks(json_object_get(s, "ticks"));
}

static void print_stages(const json_t *s)
{
    size_t i;
    json_t *g;
    printf("\n%-6s %-12s %-8s %-10s %-9s %-12s %9s %9s %9s %6s %6s %9s\n", "stage", "host", "pid", "state", "layers",
           "backend", "weights", "KV", "restarts", "busy", "waits", "hop");
    json_array_foreach(json_object_get(s, "stages"), i, g) {
        char layers[32];
        const json_t *range = json_object_get(g, "layers");
        snprintf(layers, sizeof layers, "%lld..%lld", (long long)json_integer_value(json_array_get(range, 0)),
                 (long long)json_integer_value(json_array_get(range, 1)) - 1); /* people count both ends, as sluice model */
        printf("%-6lld %-12.12s %-8lld %-10s %-9s %-12s %5lld MiB %5lld MiB %9lld %4.0f %% %4.0f %% %6.2f ms\n", num(g, "stage"),
               str(g, "host"), num(g, "pid"), str(g, "state"), layers, str(g, "backend"), num(g, "weight_bytes") >> 20,
               num(g, "kv_bytes") >> 20, num(g, "restarts"), json_number_value(json_object_get(g, "busy_ratio")) * 100,
               json_number_value(json_object_get(g, "bubble_ratio")) * 100, ms(g, "hop_us"));
    }
}

static void print_slots(const json_t *s)
{
    enum { MOST_ROWS = 64 };
    size_t i, n_free = 0, n_rows = 0;
    json_t *g;
    printf("\n%-6s %-10s %-28s %8s %8s %8s %9s %8s\n", "slot", "state", "request", "prompt", "cached", "read", "generated",
           "age");
    json_array_foreach(json_object_get(s, "slots"), i, g) {
        if (strcmp(str(g, "state"), "free") == 0) {
            n_free++;
            continue;
        }
        if (++n_rows > MOST_ROWS)
            continue;
        printf("%-6lld %-10s %-28.28s %8lld %8lld %8lld %9lld %5.1f s\n", num(g, "slot"), str(g, "state"), str(g, "request"),
               num(g, "prompt_tokens"), num(g, "cached_tokens"), num(g, "read_tokens"), num(g, "generated_tokens"),
               (double)num(g, "age_ms") / 1000);
    }
    if (n_rows > MOST_ROWS)
        printf("... and %zu more (--json has them all)\n", n_rows - MOST_ROWS);
    printf("%zu of %zu slots are free\n", n_free, json_array_size(json_object_get(s, "slots")));
}

enum status status_run(const struct http *h, int json, struct error *err)
{
    json_t *s = NULL;
    TRY(http_get(h, "/v1/status", &s, err));
    if (json) {
        json_dumpf(s, stdout, JSON_INDENT(2));
        putchar('\n');
    } else {
        print_service(s);
        print_stages(s);
        print_slots(s);
    }
    json_decref(s);
    return STATUS_OK;
}
