/* A coordinator whose answers are written in the prompt, for tests of the gateway without model and stages.
 *
 * The prompt (or the last message of a chat) holds words NAME=VALUE:
 *   say=TEXT     the answer, `_` for a space, a token for each word; count=N: the answer is w1 w2 ... wN
 *   size=BYTES   each token is padded to so many bytes;  delay=MS  wait before each token
 *   queue=MS     waits in the queue, position 3;  read=MS  then reads;  silent=1  not even accepted
 *   fail=STATUS,RETRY  refused with a number of status.h;  failafter=K  fails after K tokens;  die=K  the process ends
 * there endless=1    ends without DONE;  echo=1  the answer is what was asked, as JSON;  only=I  what fails or dies is answer I of n
 * max_tokens and stop strings are obeyed (not by echo). `#` in say is the answer's number among n: those after the first come with the
 * prompt's ids and say what their first one was asked. Token i of an answer has the id 100 + i; the vocabulary is the 256 bytes, 0 to 31
 * hidden. Log probabilities are -(i + 1)/4 for the token, -1, -2, ... for the ids from its own on. SIGUSR1 switches ready off and on.
 */
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/config.h"
#include "common/base/list.h"
#include "rpc/grpc/admin_api.h"
#include "rpc/grpc/inference_api.h"

enum { PROGRESS_MS = 20, FULL_RETRY_MS = 5, TOKENS_MAX = 100000 };
enum phase { PHASE_QUEUED, PHASE_READING, PHASE_DECODING };

struct call {
    struct list link;
    struct generate_call *handle;
    char id[64], client[64];
    enum phase phase;
    int64_t phase_until_ns;
    uint32_t n_top, choice;
    char **token;
    size_t n_tokens, at, prompt_tokens;
    int delay_ms, queue_ms, read_ms, silent, failafter, die, endless;
    enum finish_reason finish;
    int closed, timer;
};

static struct {
    struct rpc_loop *loop;
    struct list calls; /* the loop's thread */
    uint64_t accepted, done, failed, cancelled;
    volatile sig_atomic_t ready;
    char names[256];
    struct {
        char id[64], *script;
    } begun[64]; /* the first of n answers: what it was asked */
    uint32_t n_begun;
} fake = {.ready = 1};

static const char *value_of(const char *script, const char *name)
{
    size_t n = strlen(name);
    for (const char *p = script; (p = strstr(p, name)); p += n)
        if ((p == script || p[-1] == ' ') && p[n] == '=')
            return p + n + 1;
    return NULL;
}

static int number_of(const char *script, const char *name, int otherwise)
{
    const char *v = value_of(script, name);
    return v ? atoi(v) : otherwise;
}

static void add_token(struct call *c, const char *text, size_t len, int size)
{
    size_t total = (size_t)size > len ? (size_t)size : len;
    char *t = malloc(total + 1);
    CHECK(t && c->n_tokens < TOKENS_MAX);
    memset(t, '.', total);
    memcpy(t, text, len);
    t[total] = 0;
    c->token[c->n_tokens++] = t;
}

/* Words, each with the space in front of it. */
static void say(struct call *c, const char *text, int size)
{
    while (*text) {
        size_t n = 1 + strcspn(text + 1, " ");
        add_token(c, text, n, size);
        text += n;
    }
}

static char *echo_json(const struct generate_request *r)
{
    json_t *stops = json_array();
    for (uint32_t i = 0; i < r->n_stops; i++)
        json_array_append_new(stops, json_stringn(r->stop[i].data, r->stop[i].len));
    json_t *biases = json_array();
    for (size_t i = 0; i < r->n_bias; i++)
        json_array_append_new(biases, json_pack("[i,f]", (int)r->bias[i].id, (double)r->bias[i].bias));
    json_t *o = json_pack(
        "{s:I,s:I,s:f,s:f,s:i,s:f,s:b,s:b,s:b,s:I,s:o,s:i,s:I,s:f,s:f,s:f,s:f,s:i,s:i,s:o}", "max_tokens", (json_int_t)r->max_tokens, "seed",
        (json_int_t)r->sampler.seed, "temperature", (double)r->sampler.temperature, "top_p", (double)r->sampler.top_p,
        "top_k", (int)r->sampler.top_k, "min_p", (double)r->sampler.min_p, "has_seed", r->has_seed, "ignore_eos",
        r->ignore_eos, "no_cache", r->no_cache, "deadline_ms", (json_int_t)r->deadline_ms, "stop", stops, "batch",
        r->batch_priority, "attempt", (json_int_t)r->attempt, "frequency_penalty", (double)r->sampler.frequency_penalty,
        "presence_penalty", (double)r->sampler.presence_penalty, "repeat_penalty", (double)r->sampler.repeat_penalty, "typical_p",
        (double)r->sampler.typical_p, "repeat_last_n", (int)r->sampler.repeat_last_n, "n_top", (int)r->sampler.n_top, "bias", biases);
    json_object_set_new(o, "client", json_stringn(r->client.data, r->client.len));
    if (r->prompt == PROMPT_CHAT)
        json_object_set_new(o, "chat", json_loadb(r->chat_json.data, r->chat_json.len, JSON_ALLOW_NUL, NULL));
    char *text = json_dumps(o, JSON_COMPACT | JSON_SORT_KEYS);
    json_decref(o);
    return text;
}

/* Of "req-...-2": 2; 0 for a request with one answer. */
static uint32_t choice_of(struct bytes id)
{
    size_t at = id.len;
    while (at && id.data[at - 1] != '-')
        at--;
    uint32_t n = 0;
    for (size_t i = at; i < id.len && id.len - at <= 3; i++)
        n = n * 10 + (uint32_t)(id.data[i] - '0');
    return at ? n : 0;
}

static size_t stem_of(struct bytes id)
{
    return id.len > 28 && id.data[28] == '-' ? 28 : id.len;
}

static void remember(struct bytes id, const char *script)
{
    uint32_t i = fake.n_begun++ % ARRAY_LEN(fake.begun);
    free(fake.begun[i].script);
    snprintf(fake.begun[i].id, sizeof fake.begun[i].id, "%.*s", (int)stem_of(id), id.data);
    fake.begun[i].script = strdup(script);
}

static const char *remembered(struct bytes id)
{
    for (size_t i = 0; i < ARRAY_LEN(fake.begun); i++)
        if (fake.begun[i].script && strlen(fake.begun[i].id) == stem_of(id) && memcmp(fake.begun[i].id, id.data, stem_of(id)) == 0)
            return fake.begun[i].script;
    return "say=ids";
}

static char *script_of(const struct generate_request *r)
{
    if (r->prompt == PROMPT_TEXT)
        return strndup(r->text.data, r->text.len);
    if (r->prompt == PROMPT_IDS)
        return strdup(choice_of(r->request_id) ? remembered(r->request_id) : "say=ids");
    json_t *chat = json_loadb(r->chat_json.data, r->chat_json.len, JSON_ALLOW_NUL, NULL);
    json_t *messages = json_object_get(chat, "messages");
    const char *text =
        json_string_value(json_object_get(json_array_get(messages, json_array_size(messages) - 1), "content"));
    char *copy = strdup(text ? text : "");
    json_decref(chat);
    return copy;
}

static void write_answer(struct call *c, const char *script, const struct generate_request *r)
{
    const char *given = value_of(script, "say");
    int size = number_of(script, "size", 0), count = number_of(script, "count", 0);
    char *text = number_of(script, "echo", 0) ? echo_json(r)
                 : given                      ? strndup(given, strcspn(given, " "))
                                              : strdup("Hello from here.");
    if (given)
        for (char *p = text; *p; p++)
            *p = *p == '_' ? ' ' : *p == '#' ? (char)('0' + c->choice % 10) : *p;
    c->token = calloc(TOKENS_MAX, sizeof *c->token);
    for (int i = 1; i <= count; i++) {
        char word[24];
        snprintf(word, sizeof word, "%sw%d", i > 1 ? " " : "", i);
        add_token(c, word, strlen(word), size);
    }
    if (!count)
        say(c, text, size);
    free(text);
}

/* Cuts the answer at the first stop string, then at max_tokens. */
static void cut_answer(struct call *c, const struct generate_request *r)
{
    c->finish = FINISH_STOP;
    for (uint32_t i = 0; i < r->n_stops; i++)
        for (size_t t = 0; t < c->n_tokens; t++) {
            char *hit = memmem(c->token[t], strlen(c->token[t]), r->stop[i].data, r->stop[i].len);
            if (hit) {
                *hit = 0;
                c->n_tokens = t + 1;
            }
        }
    if (r->max_tokens >= 0 && (size_t)r->max_tokens < c->n_tokens) {
        c->n_tokens = (size_t)r->max_tokens;
        c->finish = FINISH_LENGTH;
    }
}

static void step(void *arg);

static void step_in(struct call *c, int64_t ms)
{
    c->timer = 1;
    rpc_loop_at(fake.loop, clock_now_ns() + ms * NS_PER_MS, step, c);
}

static void drop(struct call *c)
{
    if (c->timer || !c->closed)
        return;
    list_remove(&c->link);
    generate_call_release(c->handle);
    for (size_t i = 0; i < TOKENS_MAX && c->token[i]; i++)
        free(c->token[i]);
    free(c->token);
    free(c);
}

static void finish(struct call *c, const struct error *err)
{
    if (err)
        fake.failed++;
    else
        fake.done++;
    c->at = SIZE_MAX;
    generate_call_finish(c->handle, err);
}

static void progress(struct call *c)
{
    struct generate_event e = {.kind = GENERATE_PROGRESS, .prompt_tokens = (uint32_t)c->prompt_tokens};
    if (c->phase == PHASE_QUEUED)
        e.queue_position = 3;
    else
        e.read_tokens = (uint32_t)c->prompt_tokens / 2;
    generate_call_send(c->handle, &e);
}

static void send_done(struct call *c)
{
    struct generate_event e = {.kind = GENERATE_DONE,
                               .finish = c->finish,
                               .usage = {.prompt_tokens = (uint32_t)c->prompt_tokens,
                                         .cached_tokens = (uint32_t)c->prompt_tokens / 2,
                                         .completion_tokens = (uint32_t)c->n_tokens,
                                         .queue_ms = c->queue_ms,
                                         .prompt_ms = c->read_ms,
                                         .decode_ms = (double)c->delay_ms * (double)c->n_tokens}};
    if (!c->endless)
        generate_call_send(c->handle, &e);
    finish(c, NULL);
}

/* One token, or the end. Returns ms until the next step, or -1. */
static int decode(struct call *c)
{
    struct error err;
    if (c->failafter >= 0 && c->at >= (size_t)c->failafter) {
        error_set(&err, STATUS_PIPELINE_LOST, "stage 1 was lost: killed");
        finish(c, &err);
        return -1;
    }
    if (c->die >= 0 && c->at >= (size_t)c->die)
        _exit(9);
    if (c->at >= c->n_tokens) {
        send_done(c);
        return -1;
    }
    uint32_t id = 100 + (uint32_t)c->at;
    struct token_logprobs lp = {.id = id, .logprob = -0.25f * (float)(c->at + 1), .n_top = c->n_top ? c->n_top - 1 : 0};
    for (uint32_t i = 0; i < lp.n_top; i++) {
        lp.top_ids[i] = id + i;
        lp.top_logprobs[i] = -1.0f - (float)i;
    }
    struct generate_event e = {.kind = GENERATE_TEXT,
                               .text = {c->token[c->at], strlen(c->token[c->at])},
                               .ids = &id,
                               .n_ids = 1,
                               .logprobs = &lp,
                               .n_logprobs = c->n_top > 0,
                               .has_usage = c->at == 0};
    if (generate_call_send(c->handle, &e) == STATUS_FULL)
        return FULL_RETRY_MS;
    c->at++;
    return c->delay_ms;
}

static void step(void *arg)
{
    struct call *c = arg;
    c->timer = 0;
    if (c->closed || c->at == SIZE_MAX) {
        drop(c);
        return;
    }
    if (c->phase == PHASE_DECODING) {
        int wait = decode(c);
        for (int burst = 0; wait == 0 && burst < 64; burst++)
            wait = decode(c);
        if (wait >= 0)
            step_in(c, wait);
        return;
    }
    if (clock_now_ns() < c->phase_until_ns) {
        progress(c);
        step_in(c, PROGRESS_MS);
        return;
    }
    c->phase_until_ns = clock_now_ns() + (c->phase == PHASE_QUEUED ? c->read_ms : 0) * NS_PER_MS;
    c->phase++;
    step_in(c, 0);
}

static void accept_call(struct call *c, const struct generate_request *r)
{
    uint32_t ids[3] = {7, 8, 9};
    struct generate_event e = {.kind = GENERATE_ACCEPTED,
                               .request_id = r->request_id,
                               .model = {"fake", 4},
                               .profile = {"fake-profile", 12},
                               .seed = r->has_seed ? r->sampler.seed : 4242,
                               .prompt_tokens = (uint32_t)c->prompt_tokens,
                               .ids = ids,
                               .n_ids = 3};
    fake.accepted++;
    generate_call_send(c->handle, &e);
    c->phase_until_ns = clock_now_ns() + c->queue_ms * NS_PER_MS;
    step_in(c, 0);
}

static void on_generate(void *ctx, struct generate_call *handle, const struct generate_request *r)
{
    struct error err;
    struct call *c = calloc(1, sizeof *c);
    char *script = script_of(r);
    (void)ctx;
    CHECK(c && script);
    c->handle = handle;
    generate_call_retain(handle);
    generate_call_set_data(handle, c);
    list_push_back(&fake.calls, &c->link);
    snprintf(c->id, sizeof c->id, "%.*s", (int)r->request_id.len, r->request_id.data);
    c->prompt_tokens = r->prompt == PROMPT_IDS ? r->n_ids : strlen(script);
    c->delay_ms = number_of(script, "delay", 0);
    c->queue_ms = number_of(script, "queue", 0);
    c->read_ms = number_of(script, "read", 0);
    c->choice = choice_of(r->request_id);
    c->n_top = r->sampler.n_top;
    if (r->prompt != PROMPT_IDS)
        remember(r->request_id, script);
    int fails = number_of(script, "only", (int)c->choice) == (int)c->choice;
    c->failafter = fails ? number_of(script, "failafter", -1) : -1;
    c->die = fails ? number_of(script, "die", -1) : -1;
    c->endless = number_of(script, "endless", 0);
    write_answer(c, script, r);
    if (!number_of(script, "echo", 0)) /* which may hold the stop strings */
        cut_answer(c, r);
    else
        c->finish = FINISH_STOP;
    const char *fail = value_of(script, "fail"), *comma = fail ? strchr(fail, ',') : NULL;
    if (fail) {
        error_param(&err, status_from_int(atoi(fail)), "", "scripted", "refused as the script says");
        err.retry_after_s = comma ? atoi(comma + 1) : 0;
        finish(c, &err);
    } else if (!number_of(script, "silent", 0)) {
        accept_call(c, r);
    }
    free(script);
}

static void on_closed(void *ctx, struct generate_call *handle)
{
    struct call *c = generate_call_data(handle);
    (void)ctx;
    if (c->at != SIZE_MAX)
        fake.cancelled++;
    c->closed = 1;
    drop(c);
}

static void on_tokenize(void *ctx, struct unary_call *call, struct bytes text, int add_special, int parse_special)
{
    size_t n = text.len + (size_t)(add_special != 0);
    uint32_t *ids = calloc(n + 1, sizeof *ids);
    (void)ctx;
    (void)parse_special;
    CHECK(ids);
    for (size_t i = 0; i < text.len; i++)
        ids[n - text.len + i] = (unsigned char)text.data[i];
    unary_call_tokens(call, ids, n);
    free(ids);
}

static void on_detokenize(void *ctx, struct unary_call *call, const uint32_t *ids, size_t n, int show_special)
{
    char *text = malloc(n + 1);
    struct error err;
    (void)ctx;
    (void)show_special;
    CHECK(text);
    for (size_t i = 0; i < n; i++) {
        if (ids[i] > 127) {
            error_param(&err, STATUS_BAD_REQUEST, "tokens", "unknown_token", "token %u is not in the vocabulary",
                        ids[i]);
            unary_call_fail(call, &err);
            free(text);
            return;
        }
        text[i] = (char)ids[i];
    }
    unary_call_text(call, (struct bytes){text, n});
    free(text);
}

static void on_template(void *ctx, struct unary_call *call, struct bytes chat_json)
{
    (void)ctx;
    unary_call_text(call, chat_json);
}

static void on_model(void *ctx, struct unary_call *call)
{
    struct model_facts m = {.architecture = {"fake", 4},
                            .profile = {"fake-profile", 12},
                            .n_layers = 4,
                            .context = 4096,
                            .n_vocab = 256,
                            .has_chat_template = 1,
                            .created_s = 1700000000};
    (void)ctx;
    for (const char *p = fake.names; *p && m.n_ids < ARRAY_LEN(m.ids);) {
        size_t n = strcspn(p, ",");
        m.ids[m.n_ids++] = (struct bytes){p, n};
        p += n + (p[n] == ',');
    }
    unary_call_model(call, &m);
}

static void on_pieces(void *ctx, struct unary_call *call)
{
    char text[256];
    uint32_t lengths[256], hidden[32];
    (void)ctx;
    for (uint32_t i = 0; i < 256; i++) {
        text[i] = (char)i;
        lengths[i] = 1;
        hidden[i % 32] = i % 32;
    }
    unary_call_pieces(call, &(struct vocabulary_pieces){{text, 256}, lengths, hidden, 256, 32});
}

static void on_status(void *ctx, struct service_status *s)
{
    (void)ctx;
    *s = (struct service_status){.version = "fake",
                                 .live = 1,
                                 .ready = fake.ready,
                                 .epoch = 1,
                                 .model_id = "fake",
                                 .architecture = "fake",
                                 .model_context = 4096,
                                 .accepted = fake.accepted,
                                 .done = fake.done,
                                 .failed = fake.failed,
                                 .cancelled = fake.cancelled,
                                 .coordinator = {"fake-host", 1}};
    LIST_EACH(it, &fake.calls)
    {
        const struct call *c = LIST_ENTRY(it, struct call, link);
        if (c->closed || c->at == SIZE_MAX)
            continue;
        s->queued += c->phase == PHASE_QUEUED;
        s->reading += c->phase == PHASE_READING;
        s->decoding += c->phase == PHASE_DECODING;
    }
}

static void on_metrics(void *ctx, enum metric_aliases aliases, struct buf *out)
{
    (void)ctx;
    if (aliases == METRIC_ALIASES_VLLM)
        buf_text(out, "# HELP vllm:num_requests_running x\n# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 0\n");
    buf_printf(out, "# HELP sluice_ticks_total Ticks.\n# TYPE sluice_ticks_total counter\nsluice_ticks_total 5\n"
                    "# HELP sluice_write_stalled_total x\n# TYPE sluice_write_stalled_total counter\n"
                    "sluice_write_stalled_total 0\n");
}

static void on_drain(void *ctx, int on)
{
    (void)ctx;
    (void)on;
}

static void on_gateway(void *ctx, const char *host, uint32_t pid)
{
    (void)ctx;
    (void)host;
    (void)pid;
}

static int serve(const struct config *c, struct error *err)
{
    static char secret[65];
    struct rpc_server *s;
    static const struct inference_service inference = {.generate = on_generate,
                                                       .generate_closed = on_closed,
                                                       .tokenize = on_tokenize,
                                                       .detokenize = on_detokenize,
                                                       .apply_template = on_template,
                                                       .get_model = on_model,
                                                       .get_pieces = on_pieces};
    static const struct admin_service admin = {
        .get_status = on_status, .get_metrics = on_metrics, .drain = on_drain, .seen_gateway = on_gateway};
    TRY(config_secret(c, secret, err));
    struct rpc_options o = {
        .secret = secret, .max_message_bytes = c->max_body_mib << 20, .heartbeat_ms = (int)c->heartbeat_ms};
    snprintf(fake.names, sizeof fake.names, "%s", c->model_name ? c->model_name : "fake,fake-alias");
    list_init(&fake.calls);
    TRY(rpc_loop_create(&fake.loop, err));
    TRY(rpc_server_create(fake.loop, &o, &s, err));
    TRY(inference_service_add(s, &inference));
    TRY(admin_service_add(s, &admin));
    TRY(rpc_server_listen(s, c->grpc, err));
    TRY(rpc_server_start(s, err));
    rpc_server_set_health(s, 1);
    printf("%d\n", rpc_server_port(s));
    fflush(stdout);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGUSR1);
    for (int sig; (sig = sigwaitinfo(&set, NULL)) != SIGTERM;) /* -1 after SIGCONT */
        if (sig == SIGUSR1)
            fake.ready = !fake.ready;
    rpc_server_destroy(s, 100);
    rpc_loop_destroy(fake.loop);
    return STATUS_OK;
}

int main(int argc, char **argv)
{
    struct config c;
    enum config_action action;
    struct error err = {0};
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGUSR1);
    sigprocmask(SIG_BLOCK, &set, NULL);
    enum status s = config_read(PROGRAM_COORDINATOR, argc, argv, &c, &action, &err);
    if (s == STATUS_OK && action == CONFIG_RUN)
        s = serve(&c, &err);
    if (s != STATUS_OK)
        fprintf(stderr, "fake_coordinator: %s\n", err.message);
    return status_exit_code(s);
}
