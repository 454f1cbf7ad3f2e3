#include "coordinator/text_workers.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "common/base/queue.h"

enum { MAX_THREADS = 8 };
static const int64_t TOKENIZE_LIMIT_NS = 10 * NS_PER_S;

struct job {
    void (*fn)(void *arg);
    void *arg;
};

struct text_workers {
    struct queue *jobs;
    unsigned n_threads;
    pthread_t threads[MAX_THREADS];
};

static void *work(void *arg)
{
    struct text_workers *w = arg;
    struct job job;
    while (queue_pop(w->jobs, &job, INT64_MAX) == STATUS_OK)
        job.fn(job.arg);
    return NULL;
}

enum status text_workers_create(unsigned n_threads, uint32_t max_jobs, struct text_workers **out)
{
    struct text_workers *w = calloc(1, sizeof *w);
    if (!w)
        return STATUS_OUT_OF_MEMORY;
    enum status s = queue_create(max_jobs, sizeof(struct job), &w->jobs);
    while (s == STATUS_OK && w->n_threads < n_threads && w->n_threads < MAX_THREADS) {
        if (pthread_create(&w->threads[w->n_threads], NULL, work, w) != 0)
            s = STATUS_OUT_OF_MEMORY;
        else
            w->n_threads++;
    }
    if (s != STATUS_OK) {
        text_workers_destroy(w);
        return s;
    }
    *out = w;
    return STATUS_OK;
}

void text_workers_stop(struct text_workers *w)
{
    if (w->jobs)
        queue_close(w->jobs);
    for (unsigned i = 0; i < w->n_threads; i++)
        pthread_join(w->threads[i], NULL);
    w->n_threads = 0;
}

void text_workers_destroy(struct text_workers *w)
{
    if (!w)
        return;
    text_workers_stop(w);
    queue_destroy(w->jobs);
    free(w);
}

enum status text_workers_submit(struct text_workers *w, void (*job)(void *arg), void *arg)
{
    enum status s = queue_push(w->jobs, &(struct job){job, arg});
    return s == STATUS_FULL ? STATUS_QUEUE_FULL : s == STATUS_CLOSED ? STATUS_DRAINING : s;
}

enum status text_tokenize(const struct text_context *t, const char *text, size_t len, unsigned flags, const char *param,
                          size_t max_ids, uint32_t **ids, size_t *n_ids, struct error *err)
{
    size_t most = tokenizer_max_ids(t->tokenizer, len), room = most < max_ids ? most : max_ids;
    uint32_t *out = malloc((room ? room : 1) * sizeof *out);
    if (!out)
        return error_set(err, STATUS_OUT_OF_MEMORY, "no memory to tokenize %zu bytes", len);
    struct error local = {0};
    enum status s = tokenizer_encode(t->tokenizer, text, len, flags, clock_now_ns() + TOKENIZE_LIMIT_NS, out, room, n_ids,
                                     &local);
    if (s != STATUS_OK) {
        free(out);
        if (err)
            *err = local;
        if (err && s == STATUS_BAD_REQUEST)
            snprintf(err->param, sizeof err->param, "%s", param);
        return s;
    }
    *ids = out;
    return STATUS_OK;
}

static enum status tokenize_prompt(const struct text_context *t, struct request *r, struct bytes text, unsigned flags,
                                   struct error *err)
{
    uint32_t *ids;
    size_t n_ids;
    const char *param = r->prompt_kind == PROMPT_CHAT ? "messages" : "prompt";
    /* A prompt that is far too long is counted to the end, so that the refusal can name both numbers. */
    TRY(text_tokenize(t, text.data, text.len, flags, param, SIZE_MAX / 8, &ids, &n_ids, err));
    enum status s = request_set_prompt(r, ids, n_ids, t->context, t->answer_cap, tokenizer_n_vocab(t->tokenizer), err);
    free(ids);
    return s;
}

enum status text_render(const struct text_context *t, struct bytes chat_json, int mark, struct buf *out, struct error *err)
{
    if (!t->chat_template)
        return error_param(err, STATUS_BAD_REQUEST, "messages", "no_chat_template",
                           "%.180s: use /v1/completions, or start the service with --chat-template", t->no_template);
    return chat_template_render(t->chat_template, chat_json.data, chat_json.len, mark, out, err);
}

static enum status prepare_chat(const struct text_context *t, struct request *r, struct error *err)
{
    struct buf rendered;
    buf_init(&rendered, TEXT_MAX_BYTES);
    enum status s = text_render(t, r->chat_json, 1, &rendered, err);
    if (s == STATUS_OK)
        s = tokenize_prompt(t, r, (struct bytes){rendered.data ? rendered.data : "", rendered.len}, TOKENIZE_PARSE_SPECIAL,
                            err);
    buf_fini(&rendered);
    return s;
}

enum status text_prepare(const struct text_context *t, struct request *r, struct error *err)
{
    switch (r->prompt_kind) {
    case PROMPT_CHAT:
        return prepare_chat(t, r, err);
    case PROMPT_TEXT:
        return tokenize_prompt(t, r, r->text, TOKENIZE_ADD_SPECIAL | TOKENIZE_PARSE_SPECIAL, err);
    case PROMPT_IDS:
        return request_set_prompt(r, r->prompt_ids, r->n_prompt, t->context, t->answer_cap, tokenizer_n_vocab(t->tokenizer),
                                  err);
    }
    return error_param(err, STATUS_BAD_REQUEST, "prompt", "missing", "no prompt");
}
