/* deploy/cli/chat.c - `sluice chat`: one question, or a conversation line by line; `sluice complete`: a text goes on. */
#include <errno.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "deploy/cli/cli.h"
#include "deploy/cli/said.h"

enum { MAX_TRIES = 30 };

struct answer {
    struct buf text;
    int n_tokens;
    double decode_ms;
    const char *finish; /* "stop" or "length" */
};

/* A model can say anything: what would steer the terminal is shown as '?' there (the conversation keeps it). */
static void show(const char *text)
{
    static int tty = -1;
    if (tty < 0)
        tty = isatty(STDOUT_FILENO);
    for (size_t n; *text; text += n ? n : 1) {
        n = tty && *text != '\n' && *text != '\t' ? said_unfit(text) : 0;
        putchar(n ? '?' : *text);
    }
    fflush(stdout);
}

static void on_event(void *ctx, const struct stream_event *e)
{
    struct answer *a = ctx;
    if (e->text) {
        show(e->text);
        buf_text(&a->text, e->text);
    }
    if (e->finish)
        a->finish = strcmp(e->finish, "length") == 0 ? "length" : "stop";
    if (e->has_usage)
        a->n_tokens = (int)e->completion_tokens;
    if (e->decode_ms > 0)
        a->decode_ms = e->decode_ms;
}

/* messages NULL: o->text is to go on. */
static json_t *request_body(const struct chat_options *o, json_t *messages)
{
    json_t *body = json_pack("{s:b, s:{s:b}}", "stream", 1, "stream_options", "include_usage", 1);
    if (body && messages)
        json_object_set(body, "messages", messages);
    else if (body)
        json_object_set_new(body, "prompt", json_string(o->text));
    if (body && o->max_tokens > 0)
        json_object_set_new(body, "max_tokens", json_integer(o->max_tokens));
    if (body && o->temperature >= 0)
        json_object_set_new(body, "temperature", json_real(o->temperature));
    if (body && o->has_seed)
        json_object_set_new(body, "seed", json_integer(o->seed));
    if (body && o->model)
        json_object_set_new(body, "model", json_string(o->model));
    return body;
}

/* One turn. A full or starting service is asked again as it says; nothing was printed yet then. */
static enum status ask(const struct chat_options *o, json_t *messages, struct answer *a, struct error *err)
{
    enum status s = STATUS_OK;
    for (int tries = 0; tries < MAX_TRIES; tries++) {
        json_t *body = request_body(o, messages);
        buf_clear(&a->text);
        s = http_post_stream(&o->http, messages ? "/v1/chat/completions" : "/v1/completions", body, on_event, a, err);
        json_decref(body);
        if (s == STATUS_OK || a->text.len || err->retry_after_s == 0 || http_interrupted)
            break;
        fprintf(stderr, "(%s; trying again in %d s)\n", err->message, err->retry_after_s);
        sleep((unsigned)err->retry_after_s);
    }
    return s;
}

static void print_figures(const struct answer *a)
{
    if (isatty(STDERR_FILENO) && a->n_tokens > 1 && a->decode_ms > 0)
        fprintf(stderr, "(%d tokens, %.1f tokens/s%s)\n", a->n_tokens, (a->n_tokens - 1) * 1000 / a->decode_ms,
                a->finish && strcmp(a->finish, "length") == 0 ? ", cut at max_tokens" : "");
}

static enum status not_utf8(struct error *err)
{
    return error_set(err, STATUS_BAD_REQUEST, "the text is not UTF-8 (is the terminal's locale another?): it was not sent");
}

static enum status turn(const struct chat_options *o, json_t *messages, const char *text, struct error *err)
{
    struct answer a = {0};
    json_t *said = json_pack("{s:s, s:s}", "role", "user", "content", text);
    if (!said)
        return not_utf8(err);
    buf_init(&a.text, 64 << 20);
    json_array_append_new(messages, said);
    enum status s = ask(o, messages, &a, err);
    if (a.text.len && a.text.data[a.text.len - 1] != '\n')
        putchar('\n');
    if (s == STATUS_OK) {
        print_figures(&a);
        json_array_append_new(messages, json_pack("{s:s, s:s}", "role", "assistant", "content", a.text.data ? a.text.data : ""));
    } else { /* a turn that failed never spoils the conversation */
        json_array_remove(messages, json_array_size(messages) - 1);
    }
    buf_fini(&a.text);
    return s;
}

enum status complete_run(const struct chat_options *o, struct error *err)
{
    struct answer a = {0};
    json_t *said = json_string(o->text);
    if (!said)
        return not_utf8(err);
    json_decref(said);
    buf_init(&a.text, 64 << 20);
    enum status s = ask(o, NULL, &a, err);
    if (a.text.len && a.text.data[a.text.len - 1] != '\n')
        putchar('\n');
    if (s == STATUS_OK)
        print_figures(&a);
    buf_fini(&a.text);
    return s;
}

static void on_interrupt(int sig)
{
    (void)sig;
    http_interrupted = 1;
}

static enum status converse(const struct chat_options *o, json_t *messages)
{
    char *line = NULL;
    size_t size = 0;
    int tty = isatty(STDIN_FILENO);
    if (tty)
        fprintf(stderr, "Type a message; an empty line or Ctrl-D ends. Ctrl-C stops an answer.\n");
    struct sigaction sa = {.sa_handler = on_interrupt};
    sigaction(SIGINT, &sa, NULL); /* no SA_RESTART: at the prompt it ends the loop */
    for (;;) {
        http_interrupted = 0;
        if (tty)
            fputs("> ", stderr);
        ssize_t n = getline(&line, &size, stdin);
        if (n <= 0 || line[0] == '\n')
            break;
        line[strcspn(line, "\n")] = 0;
        struct error err = {0};
        if (turn(o, messages, line, &err) != STATUS_OK)
            fprintf(stderr, "sluice: %s\n", err.message);
    }
    free(line);
    return STATUS_OK;
}

enum status chat_run(const struct chat_options *o, struct error *err)
{
    json_t *messages = json_array();
    json_t *system = o->system ? json_pack("{s:s, s:s}", "role", "system", "content", o->system) : NULL;
    if (system)
        json_array_append_new(messages, system);
    enum status s = o->system && !system ? not_utf8(err) : o->text ? turn(o, messages, o->text, err) : converse(o, messages);
    json_decref(messages);
    return s;
}
