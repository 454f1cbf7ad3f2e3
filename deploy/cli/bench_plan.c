#include "deploy/cli/bench_plan.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/check.h"
#include "common/base/rand.h"

enum { MAX_TOKENS = 16 << 20, MAX_BODY_BYTES = 512 << 20 };

/* Seeds of the draws that must not depend on each other. */
enum { DRAW_LENGTH = 1, DRAW_ARRIVAL, DRAW_PROMPT, DRAW_SHARED };

/* Short and common: with a space before it each is one token in nearly every vocabulary of a large model. */
static const char *const words[] = {
    "time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school", "state", "family",
    "student", "group", "country", "problem", "hand", "part", "place", "case", "week", "company", "system", "program",
    "question", "work", "government", "number", "night", "point", "home", "water", "room", "mother", "area", "money", "story",
    "fact", "month", "lot", "right", "study", "book", "eye", "job", "word", "business", "issue", "side", "kind", "head",
    "house", "service", "friend", "father", "power", "hour", "game", "line", "end", "member", "law", "car", "city",
    "community", "name", "president", "team", "minute", "idea", "kid", "body", "information", "back", "parent", "face",
    "others", "level", "office", "door", "health", "person", "art", "war", "history", "party", "result", "change", "morning",
    "reason", "research", "girl", "guy", "moment", "air", "teacher", "force", "education", "foot", "boy", "age", "policy",
    "music", "market", "sense", "nation", "plan", "college", "interest", "death", "experience", "effect", "use", "class",
    "control", "field", "development", "role", "effort", "rate", "heart", "drug", "show", "leader", "light", "voice", "wife",
    "police", "mind", "price", "report", "decision", "son", "view", "relationship", "town", "road", "arm", "difference",
    "value", "building", "action", "season", "society", "tax", "director", "position", "player", "record", "paper", "space",
    "ground", "form", "event", "official", "matter", "center", "couple", "site", "project", "activity", "star", "table",
    "need", "court", "oil", "situation", "cost", "industry", "figure", "street", "image", "phone", "data", "picture",
    "practice", "piece", "land", "product", "doctor", "wall", "patient", "worker", "news", "test", "movie", "north", "love",
    "support", "technology", "step", "baby", "computer", "type", "attention", "film", "tree", "source", "organization",
    "look", "window", "culture", "chance", "brother", "energy", "period", "course", "summer", "plant", "opportunity", "term",
    "letter", "condition", "choice", "rule", "daughter", "south", "husband", "floor", "campaign", "material", "population",
    "call", "economy", "hospital", "church", "risk", "fire", "future", "bank", "west", "sport", "board", "subject", "officer",
    "rest", "behavior", "performance", "fight", "top", "goal", "second", "bed", "order", "author", "hope", "resource", "blood",
};

/* --- lengths and arrivals --------------------------------------------------------------------------------------------------- */

static enum status bad_length(const char *flag, const char *text, struct error *err)
{
    return error_set(err, STATUS_CONFIG, "--%s: '%s' is not allowed; N, A-B or lognormal:A-B is, in tokens from 1 to %d", flag, text,
                     MAX_TOKENS);
}

enum status length_parse(const char *flag, const char *text, struct length *out, struct error *err)
{
    struct length l = {.kind = LENGTH_UNIFORM};
    const char *p = text;
    char *end;
    if (strncmp(p, "lognormal:", 10) == 0) {
        l.kind = LENGTH_LOGNORMAL;
        p += 10;
    }
    long long a = strtoll(p, &end, 10), b = a;
    if (end == p)
        return bad_length(flag, text, err);
    if (*end == '-') {
        p = end + 1;
        b = strtoll(p, &end, 10);
        if (end == p)
            return bad_length(flag, text, err);
    } else if (l.kind == LENGTH_UNIFORM) {
        l.kind = LENGTH_FIXED;
    } else {
        return bad_length(flag, text, err);
    }
    if (*end || a < 1 || b < a || b > MAX_TOKENS)
        return bad_length(flag, text, err);
    l.min = (uint32_t)a;
    l.max = (uint32_t)b;
    *out = l;
    return STATUS_OK;
}

/* In (0, 1). */
static double unit(uint64_t key, uint64_t i)
{
    return ((double)(rand_at(key, i) >> 12) + 0.5) * 0x1p-52;
}

uint32_t length_draw(const struct length *l, uint64_t seed, uint64_t index)
{
    uint64_t key = rand_at(seed, DRAW_LENGTH);
    if (l->kind == LENGTH_FIXED)
        return l->min;
    if (l->kind == LENGTH_UNIFORM)
        return l->min + (uint32_t)(rand_at(key, index) % ((uint64_t)l->max - l->min + 1));
    /* Box and Muller's normal from two draws. */
    double normal = sqrt(-2 * log(unit(key, 2 * index))) * cos(2 * 3.14159265358979323846 * unit(key, 2 * index + 1));
    double lo = log(l->min), hi = log(l->max), x = exp((lo + hi) / 2 + normal * (hi - lo) / 4);
    return x <= l->min ? l->min : x >= l->max ? l->max : (uint32_t)lround(x);
}

double plan_arrival_gap_s(double rate, uint64_t seed, uint64_t index)
{
    return -log(unit(rand_at(seed, DRAW_ARRIVAL), index)) / rate;
}

/* --- bodies ----------------------------------------------------------------------------------------------------------------- */

enum status plan_init(struct plan *p, const struct plan_options *o, struct error *err)
{
    json_t *extra = o->extra_json ? json_loads(o->extra_json, 0, NULL) : NULL,
           *head = json_pack("{s:b, s:{s:b}, s:f, s:b}", "stream", 1, "stream_options", "include_usage", 1, "temperature",
                             o->temperature, "ignore_eos", 1);
    if (o->extra_json && !json_is_object(extra)) {
        json_decref(extra);
        json_decref(head);
        return error_set(err, STATUS_CONFIG, "--body: '%s' is no JSON object", o->extra_json);
    }
    if (o->model)
        json_object_set_new(head, "model", json_string(o->model));
    json_object_update(head, extra);
    char *text = json_dumps(head, JSON_COMPACT);
    json_decref(extra);
    json_decref(head);
    if (!text)
        return error_set(err, STATUS_OUT_OF_MEMORY, "no memory for the requests");
    text[strlen(text) - 1] = 0;
    *p = (struct plan){.o = *o, .head = text, .tokens_per_word = 1};
    return STATUS_OK;
}

void plan_fini(struct plan *p)
{
    free(p->head);
    *p = (struct plan){0};
}

const char *plan_path(const struct plan *p)
{
    return p->o.is_chat ? "/v1/chat/completions" : "/v1/completions";
}

/* Ids from..to-1 of a prompt, by its key. */
static void put_ids(const struct plan *p, struct buf *b, uint64_t key, uint32_t from, uint32_t to)
{
    uint32_t n_ids = p->o.last_id - p->o.first_id + 1;
    for (uint32_t i = from; i < to; i++)
        buf_printf(b, i ? ",%u" : "%u", p->o.first_id + (uint32_t)(rand_at(key, i) % n_ids));
}

static void put_words(struct buf *b, uint64_t key, uint32_t from, uint32_t to)
{
    for (uint32_t i = from; i < to; i++) {
        if (i)
            buf_append(b, " ", 1);
        buf_text(b, words[rand_at(key, i) % ARRAY_LEN(words)]);
    }
}

static uint32_t n_words(const struct plan *p, double n_tokens)
{
    return n_tokens < p->tokens_per_word ? 1 : (uint32_t)lround(n_tokens / p->tokens_per_word);
}

char *plan_body(const struct plan *p, uint64_t index, uint32_t n_prompt, uint32_t n_answer, int flags, size_t *len)
{
    uint64_t own = rand_at(rand_at(p->o.seed, DRAW_PROMPT), index), shared = rand_at(p->o.seed, DRAW_SHARED);
    uint32_t n_shared = flags & PLAN_OWN_PREFIX ? 0 : p->o.shared_prefix;
    struct buf b;
    buf_init(&b, MAX_BODY_BYTES);
    buf_printf(&b, "%s,\"max_tokens\":%u,%s", p->head, n_answer, flags & PLAN_TOKEN_IDS ? "\"return_token_ids\":true," : "");
    if (p->o.has_ids) {
        if (n_shared > n_prompt)
            n_shared = n_prompt;
        buf_text(&b, "\"prompt\":[");
        put_ids(p, &b, shared, 0, n_shared);
        put_ids(p, &b, own, n_shared, n_prompt);
        buf_text(&b, "]}");
    } else {
        uint32_t n = n_words(p, n_prompt - p->tokens_around), n_first = n_shared ? n_words(p, n_shared) : 0;
        if (n_first > n)
            n_first = n;
        buf_text(&b, p->o.is_chat ? "\"messages\":[{\"role\":\"user\",\"content\":\"" : "\"prompt\":\"");
        put_words(&b, shared, 0, n_first);
        put_words(&b, own, n_first, n);
        buf_text(&b, p->o.is_chat ? "\"}]}" : "\"}");
    }
    if (b.failed) {
        buf_fini(&b);
        return NULL;
    }
    *len = b.len;
    return b.data;
}

void plan_calibrate(struct plan *p, uint32_t n_words_1, int64_t n_tokens_1, uint32_t n_words_2, int64_t n_tokens_2)
{
    double per_word = ((double)n_tokens_2 - (double)n_tokens_1) / ((double)n_words_2 - n_words_1);
    if (!(per_word >= 0.2 && per_word <= 50)) /* a server that does not count its prompts */
        return;
    p->tokens_per_word = per_word;
    p->tokens_around = (double)n_tokens_1 - per_word * n_words_1;
    if (p->tokens_around < 0)
        p->tokens_around = 0;
}
