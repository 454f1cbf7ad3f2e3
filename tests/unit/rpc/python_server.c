/* A server for test_rpc_python.py: prints its port, serves until its input ends. "h" on the input: not serving, "H": serving.
 * Generate does what the prompt says: "say TEXT", "fail", "hang", "unsaid" (ends when the client goes). */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "rpc/grpc/admin_api.h"
#include "rpc/grpc/inference_api.h"
#include "rpc/grpc/stage_api.h"

static int n_closed;

static struct bytes text_bytes(const char *t)
{
    return (struct bytes){t, strlen(t)};
}

static void say(struct generate_call *call, const struct generate_request *r)
{
    static const uint32_t ids[] = {1, 300000, 3};
    struct generate_event accepted = {.kind = GENERATE_ACCEPTED,
                                      .request_id = r->request_id,
                                      .model = text_bytes("m"),
                                      .profile = r->client, /* shows who the caller is taken for */
                                      .seed = r->has_seed ? r->sampler.seed : 5,
                                      .prompt_tokens = (uint32_t)(r->deadline_ms > 0 ? r->deadline_ms : 0),
                                      .ids = ids,
                                      .n_ids = 3};
    generate_call_send(call, &accepted);
    for (size_t i = 4; i < r->text.len; i++) {
        struct generate_event e = {.kind = GENERATE_TEXT, .text = {r->text.data + i, 1}, .ids = ids + 1, .n_ids = 1};
        generate_call_send(call, &e);
    }
    struct generate_event done = {.kind = GENERATE_DONE, .finish = FINISH_LENGTH, .usage = {.completion_tokens = 9}};
    generate_call_send(call, &done);
    generate_call_finish(call, NULL);
}

static void on_generate(void *ctx, struct generate_call *call, const struct generate_request *r)
{
    struct error err = {.status = STATUS_QUEUE_FULL, .retry_after_s = 7, .message = "1024 of 1024 wait", .param = "p", .code = "c"};
    (void)ctx;
    if (r->prompt == PROMPT_TEXT && r->text.len >= 4 && memcmp(r->text.data, "say ", 4) == 0)
        say(call, r);
    else if (r->prompt == PROMPT_TEXT && r->text.len == 4 && memcmp(r->text.data, "fail", 4) == 0)
        generate_call_finish(call, &err);
}

static void on_closed(void *ctx, struct generate_call *call)
{
    (void)ctx;
    (void)call;
    n_closed++;
}

static void on_tokenize(void *ctx, struct unary_call *call, struct bytes text, int add_special, int parse_special)
{
    uint32_t n = (uint32_t)text.len;
    (void)ctx;
    (void)add_special;
    (void)parse_special;
    unary_call_tokens(call, &n, 1);
}

static void on_detokenize(void *ctx, struct unary_call *call, const uint32_t *ids, size_t n_ids, int show_special)
{
    (void)ctx;
    (void)ids;
    (void)n_ids;
    (void)show_special;
    unary_call_text(call, text_bytes("text"));
}

static void on_template(void *ctx, struct unary_call *call, struct bytes json)
{
    (void)ctx;
    unary_call_text(call, json);
}

static void on_model(void *ctx, struct unary_call *call)
{
    struct model_facts m = {.ids = {text_bytes("m")}, .n_ids = 1, .context = 77};
    (void)ctx;
    unary_call_model(call, &m);
}

static void on_status(void *ctx, struct service_status *s)
{
    (void)ctx;
    s->live = 1;
    s->cancelled = (uint64_t)n_closed;
    snprintf(s->version, sizeof s->version, "test");
}

static void on_metrics(void *ctx, enum metric_aliases aliases, struct buf *out)
{
    (void)ctx;
    buf_text(out, aliases == METRIC_ALIASES_VLLM ? "sluice_epoch 1\nvllm:epoch 1\n" : "sluice_epoch 1\n");
}

static void on_drain(void *ctx, int on)
{
    (void)ctx;
    (void)on;
}

static void on_attach(void *ctx, struct stage_conn *c)
{
    (void)ctx;
    (void)c;
}

static void on_message(void *ctx, struct stage_conn *c, const struct from_stage *m)
{
    (void)ctx;
    (void)c;
    (void)m;
}

static void on_gone(void *ctx, struct stage_conn *c)
{
    (void)ctx;
    (void)c;
}

static struct result *no_result(void *ctx)
{
    (void)ctx;
    return NULL;
}

int main(void)
{
    const struct inference_service inference = {
        NULL, on_generate, on_closed, on_tokenize, on_detokenize, on_template, on_model};
    const struct admin_service admin = {.get_status = on_status, .get_metrics = on_metrics, .drain = on_drain};
    const struct stages_service stages = {NULL, on_attach, on_message, on_gone, no_result};
    const struct rpc_options o = {.secret = "s3cret", .max_message_bytes = 1 << 20, .heartbeat_ms = 300};
    struct rpc_loop *loop;
    struct rpc_server *server;
    struct error err = {0};
    if (rpc_loop_create(&loop, &err) || rpc_server_create(loop, &o, &server, &err) ||
        inference_service_add(server, &inference) || admin_service_add(server, &admin) || stages_service_add(server, &stages) ||
        rpc_server_listen(server, "127.0.0.1:0", &err) || rpc_server_start(server, &err)) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    rpc_server_set_health(server, 1);
    printf("%d\n", rpc_server_port(server));
    fflush(stdout);
    for (char c; read(0, &c, 1) == 1;)
        if (c == 'h' || c == 'H')
            rpc_server_set_health(server, c == 'H');
    rpc_server_destroy(server, 0);
    rpc_loop_destroy(loop);
    return 0;
}
