#include "common/text/chat_template.h"

#include <jansson.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/text/chat_child.h"
#include "common/text/chat_mark.h"
#include "common/text/chat_template_impl.h"
#include "common/text/tokenizer_impl.h"

#define LOG_MODULE "template"
#include "common/base/log.h"

enum {
    START_LIMIT_MS = 20000, /* a cold Python on a busy disk; 150 ms when warm */
    COMPILE_LIMIT_MS = 5000,
    RENDER_LIMIT_MS = 1500,  /* 100 KB of messages take 0.3 ms, a megabyte 10 ms */
    MEMORY_MIB = 56,         /* FC-62: the service grows by less than 64 */
    MAX_SOURCE = 1 << 20,
    MAX_CONTEXT = 8 << 20,   /* bytes of JSON; what marks add is on top */
    MAX_OUTPUT = 8 << 20,    /* characters */
};

struct chat_template {
    const struct tokenizer *tokenizer;
    char *python, *source, *tools; /* tools: Jinja for a context that has some, or NULL */
    size_t source_len, tools_len;
    char now[40]; /* "": the real clock */
    pthread_mutex_t lock; /* guards all below */
    struct chat_child child;
    int started; /* a child has come up once: python and jinja2 are there */
    int ready;   /* the child has compiled the template */
    struct buf reply, marked;
};

void chat_template_unmark(struct buf *text)
{
    if (text->len == 0)
        return;
    text->len = chat_mark_remove(text->data, text->len);
    text->data[text->len] = 0;
}

static int set_token(json_t *settings, const char *name, const struct tokenizer *tok, int64_t id)
{
    if (id < 0)
        return 0; /* undefined in the template, as in transformers */
    struct text piece = tokenizer_piece(tok, (uint32_t)id, 1);
    return json_object_set_new(settings, name, json_stringn(piece.data, piece.len));
}

/* What the child needs to know once, as JSON; NULL: no memory, or a text that is not UTF-8. */
static char *settings_json(const struct chat_template *t)
{
    json_t *s = json_pack("{s:s%, s:f, s:f, s:i}", "template", t->source, t->source_len, "compile_limit_s",
                          COMPILE_LIMIT_MS / 1000.0, "time_limit_s", RENDER_LIMIT_MS / 1000.0, "output_limit", MAX_OUTPUT);
    char *text = NULL;
    if (s && (!t->tools || json_object_set_new(s, "tools_template", json_stringn(t->tools, t->tools_len)) == 0) &&
        set_token(s, "bos_token", t->tokenizer, tokenizer_bos(t->tokenizer)) == 0 &&
        set_token(s, "eos_token", t->tokenizer, tokenizer_eos(t->tokenizer)) == 0 &&
        (!t->now[0] || json_object_set_new(s, "now", json_string(t->now)) == 0))
        text = json_dumps(s, JSON_COMPACT);
    json_decref(s);
    return text;
}

static int64_t deadline_in(int ms)
{
    return clock_now_ns() + ms * NS_PER_MS;
}

/* Another answer, or none in time, is a failure of that kind. */
static enum status expect(struct chat_template *t, char kind, int limit_ms, const char *what, enum status failure,
                          struct error *err)
{
    char said = 0;
    enum status s = chat_child_receive(&t->child, &said, &t->reply, deadline_in(limit_ms));
    if (s == STATUS_TIMEOUT)
        return error_set(err, failure, "chat template: %s took more than %d ms", what, limit_ms);
    if (s != STATUS_OK)
        return error_set(err, STATUS_CLOSED, "chat template: %s ended during %s", t->python, what);
    if (said == kind)
        return STATUS_OK;
    return error_set(err, failure, "chat template: %.*s", t->reply.len > 250 ? 250 : (int)t->reply.len, t->reply.data);
}

static enum status compile(struct chat_template *t, struct error *err)
{
    TRY(expect(t, CHILD_SAYS_READY, START_LIMIT_MS, "the start of Python", STATUS_CONFIG, err));
    t->started = 1;
    LOG_DEBUG("child %d runs %s a filter of system calls", (int)t->child.pid, t->reply.data);
    char *settings = settings_json(t);
    if (!settings)
        return error_set(err, STATUS_BAD_MODEL, "chat template: it is not UTF-8, or there is no memory");
    enum status s = chat_child_send(&t->child, CHILD_ASK_TEMPLATE, settings, strlen(settings), deadline_in(COMPILE_LIMIT_MS));
    free(settings);
    if (s != STATUS_OK)
        return error_set(err, STATUS_CLOSED, "chat template: %s does not listen: %s", t->python, status_text(s));
    return expect(t, CHILD_SAYS_TEXT, COMPILE_LIMIT_MS, "compiling", STATUS_BAD_MODEL, err);
}

static void stop(struct chat_template *t)
{
    chat_child_stop(&t->child);
    t->ready = 0;
}

/* Afterwards a child waits for a context. STATUS_CLOSED: it ended as it started. */
static enum status ensure_child(struct chat_template *t, struct error *err)
{
    if (t->ready && !chat_child_idle(&t->child)) {
        LOG_WARN("child %d has ended; a new one is started", (int)t->child.pid);
        stop(t);
    }
    if (t->ready)
        return STATUS_OK;
    if (t->child.pid <= 0)
        TRY(chat_child_start(&t->child, t->python, MEMORY_MIB, err));
    enum status s = compile(t, err);
    if (s != STATUS_OK)
        stop(t);
    t->ready = s == STATUS_OK;
    return s;
}

/* After a child was lost: the next one is already importing when the next request comes. */
static void replace_child(struct chat_template *t)
{
    stop(t);
    chat_child_start(&t->child, t->python, MEMORY_MIB, NULL);
}

static char *copy(struct text t)
{
    char *p = malloc(t.len);
    return p ? memcpy(p, t.data, t.len) : NULL;
}

/* What a child of the first start says, told apart: the program is not the right one, or the template is not. */
static enum status first_start(struct chat_template *t, struct error *err)
{
    enum status s = ensure_child(t, err);
    if (s != STATUS_CLOSED)
        return s;
    s = t->started ? STATUS_BAD_MODEL : STATUS_CONFIG;
    if (err)
        err->status = s;
    return s;
}

enum status chat_template_open(const struct chat_source *source, const char *python, const struct tokenizer *tok,
                               struct chat_template **out, struct error *err)
{
    if (source->text.len > MAX_SOURCE || source->tools.len > MAX_SOURCE)
        return error_set(err, STATUS_BAD_MODEL, "chat template: %zu bytes (at most %d)",
                         source->text.len > MAX_SOURCE ? source->text.len : source->tools.len, MAX_SOURCE);
    struct chat_template *t = calloc(1, sizeof *t);
    if (!t)
        return error_set(err, STATUS_OUT_OF_MEMORY, "no memory for the chat template");
    t->tokenizer = tok;
    t->child.fd = -1;
    t->source = copy(source->text);
    t->source_len = source->text.len;
    t->tools = source->tools.len ? copy(source->tools) : NULL;
    t->tools_len = source->tools.len;
    t->python = strdup(python);
    pthread_mutex_init(&t->lock, NULL);
    buf_init(&t->reply, CHILD_MAX_FRAME);
    buf_init(&t->marked, CHILD_MAX_FRAME);
    const int copied = t->source && t->python && (t->tools || !t->tools_len);
    enum status s = copied ? first_start(t, err) : error_set(err, STATUS_OUT_OF_MEMORY, "no memory for the chat template");
    if (s != STATUS_OK) {
        chat_template_close(t);
        return s;
    }
    *out = t;
    return STATUS_OK;
}

void chat_template_close(struct chat_template *t)
{
    if (!t)
        return;
    stop(t);
    pthread_mutex_destroy(&t->lock);
    buf_fini(&t->reply);
    buf_fini(&t->marked);
    free(t->source);
    free(t->tools);
    free(t->python);
    free(t);
}

static enum status refused(struct chat_template *t, const char *code, const char *what, struct error *err)
{
    int len = t->reply.len > 250 ? 250 : (int)t->reply.len;
    return error_param(err, STATUS_BAD_REQUEST, "messages", code, "%s%.*s", what, len, t->reply.data);
}

static enum status take_reply(struct chat_template *t, char said, struct buf *out, struct error *err)
{
    switch (said) {
    case CHILD_SAYS_TEXT:
        if (buf_append(out, t->reply.data, t->reply.len) != STATUS_OK)
            return error_set(err, STATUS_OUT_OF_MEMORY, "the rendered prompt has %zu bytes", t->reply.len);
        return STATUS_OK;
    case CHILD_SAYS_RAISED:
        return refused(t, "chat_template_raised", "", err);
    case CHILD_SAYS_ERROR:
        return refused(t, "chat_template_error", "the chat template fails on these messages: ", err);
    case CHILD_SAYS_LIMIT:
        replace_child(t);
        return refused(t, "chat_template_limit", "", err);
    default:
        stop(t);
        return error_set(err, STATUS_INTERNAL, "chat template: the child said %d", said);
    }
}

/* One try within *left_ns, which it uses up. The child that was lost is replaced. */
static enum status try_once(struct chat_template *t, char kind, const char *context, size_t len, int64_t *left_ns,
                            char *said, struct error *err)
{
    enum status s = ensure_child(t, err);
    if (s == STATUS_CLOSED)
        return error_set(err, STATUS_INTERNAL, "the chat template's process ended as it started");
    if (s == STATUS_CONFIG || s == STATUS_BAD_MODEL) { /* it ran once: this passes, and the next request may find it well */
        s = STATUS_IO;
        if (err)
            err->status = s;
    }
    if (s != STATUS_OK)
        return s;
    int64_t start = clock_now_ns(), deadline = start + *left_ns;
    s = chat_child_send(&t->child, kind, context, len, deadline);
    if (s == STATUS_OK)
        s = chat_child_receive(&t->child, said, &t->reply, deadline);
    *left_ns -= clock_now_ns() - start;
    if (s == STATUS_OK)
        return STATUS_OK;
    replace_child(t);
    if (s == STATUS_TIMEOUT)
        return error_set(err, s, "the chat template took more than %d ms", RENDER_LIMIT_MS);
    return error_set(err, STATUS_INTERNAL, "the chat template's process ended while it rendered");
}

/* A child that ends is not always the template's doing (somebody killed it, memory was short): it gets more tries in what is left
 * of the time. */
static enum status ask(struct chat_template *t, char kind, const char *context, size_t len, struct buf *out,
                       struct error *err)
{
    enum { TRIES = 3 };
    int64_t left_ns = RENDER_LIMIT_MS * NS_PER_MS;
    char said = 0;
    enum status s = STATUS_INTERNAL;
    for (int i = 0; i < TRIES && s == STATUS_INTERNAL; i++)
        s = try_once(t, kind, context, len, &left_ns, &said, err);
    return s == STATUS_OK ? take_reply(t, said, out, err) : s;
}

/* Big buffers are not kept for small requests that follow. */
static void shrink(struct buf *b)
{
    enum { KEEP = 1 << 20 };
    if (b->size > KEEP) {
        buf_fini(b);
        buf_init(b, CHILD_MAX_FRAME);
    }
}

enum status chat_template_render(struct chat_template *t, const char *context_json, size_t len, int mark,
                                 struct buf *out, struct error *err)
{
    if (len > MAX_CONTEXT)
        return error_param(err, STATUS_BAD_REQUEST, "messages", "chat_template_limit",
                           "the messages have %zu bytes (at most %d)", len, MAX_CONTEXT);
    pthread_mutex_lock(&t->lock);
    enum status s = STATUS_OK;
    if (mark) {
        buf_clear(&t->marked);
        s = chat_mark_json(tokenizer__special(t->tokenizer), context_json, len, &t->marked, err);
        context_json = t->marked.data;
        len = t->marked.len;
    }
    if (s == STATUS_OK)
        s = ask(t, mark ? CHILD_ASK_MARKED : CHILD_ASK_RENDER, context_json, len, out, err);
    shrink(&t->reply);
    shrink(&t->marked);
    pthread_mutex_unlock(&t->lock);
    return s;
}

enum status chat_template__freeze(struct chat_template *t, const char *now, struct error *err)
{
    pthread_mutex_lock(&t->lock);
    strncpy(t->now, now, sizeof t->now - 1);
    stop(t);
    enum status s = ensure_child(t, err);
    pthread_mutex_unlock(&t->lock);
    return s;
}

pid_t chat_template__pid(const struct chat_template *t)
{
    return t->child.pid;
}
