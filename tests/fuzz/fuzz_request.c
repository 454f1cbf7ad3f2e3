/* tests/fuzz/fuzz_request.c - a request from the bytes of its message up to the engine's door.
 *
 * Input      1 byte size of the context, then a GenerateRequest. The seeds are made by make_wire_seeds.py.
 * Must hold  It is refused in words, as the client's fault, or its prompt and its answer fit the context, every id of prompt, answer
 *            and biases lies in the vocabulary, and what its OPEN may have fits a plan. A token that came with it is not believed.
 *            With the right token it goes on where its client is: after ids that are an answer, which only the last of them ends.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/check.h"
#include "common/base/log.h"
#include "common/wire/plan.h"
#include "coordinator/request.h"
#include "coordinator/text_workers.h"
#include "rpc/grpc/inference_wire.h"
#include "tests/unit/text/vocabulary_maker.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_SIZE = 16 << 10, ARENA = 1 << 20, ANSWER_CAP = 64, N_TOKENS = 260 };

static struct tokenizer *tokenizer;
static struct resume_key key;

static void open_vocabulary(void)
{
    static struct vocabulary_maker maker;
    static struct gguf *g;
    static const uint8_t model[32] = {7};
    static const char *const more[] = {"<s>", "</s>", "he", "ll"};
    struct text tokens[N_TOKENS];
    int32_t types[N_TOKENS];
    struct error err;
    size_t len;
    log_set_levels("error", NULL);
    vocabulary_maker_symbols(tokens);
    for (size_t i = 0; i < N_TOKENS; i++)
        types[i] = i == 256 || i == 257 ? 3 : 1;
    for (size_t i = 256; i < N_TOKENS; i++)
        tokens[i] = (struct text){more[i - 256], strlen(more[i - 256])};
    vocabulary_maker_init(&maker);
    vocabulary_maker_text(&maker, "tokenizer.ggml.model", "gpt2");
    vocabulary_maker_text(&maker, "tokenizer.ggml.pre", "qwen2");
    vocabulary_maker_texts(&maker, "tokenizer.ggml.tokens", tokens, N_TOKENS);
    vocabulary_maker_ints(&maker, "tokenizer.ggml.token_type", types, N_TOKENS);
    vocabulary_maker_texts(&maker, "tokenizer.ggml.merges", tokens, 0);
    vocabulary_maker_u32(&maker, "tokenizer.ggml.eos_token_id", 257);
    const void *bytes = vocabulary_maker_bytes(&maker, &len);
    CHECK(gguf_open_memory(bytes, len, &g, &err) == STATUS_OK && tokenizer_create(g, &tokenizer, &err) == STATUS_OK);
    CHECK(resume_key_init(&key, "secret", model, &err) == STATUS_OK);
}

static int is_refusal(enum status s, const struct error *err)
{
    return err->status == s && err->message[0] && (s == STATUS_BAD_REQUEST || s == STATUS_FORBIDDEN || s == STATUS_OUT_OF_MEMORY);
}

static void check_made(const struct request *r, const struct generate_request *g)
{
    CHECK(r->id[0] && memchr(r->id, 0, sizeof r->id) && memchr(r->client, 0, sizeof r->client));
    CHECK(!g->request_id.len || (strlen(r->id) == g->request_id.len && memcmp(r->id, g->request_id.data, g->request_id.len) == 0));
    CHECK(r->n_stops == g->n_stops && r->sampler.n_bias == g->n_bias && r->resumed == (g->resume.token.len > 0));
    for (uint32_t i = 0; i < r->n_stops; i++)
        CHECK(r->stops[i].len == g->stop[i].len && memcmp(r->stops[i].data, g->stop[i].data, g->stop[i].len) == 0);
    CHECK(!g->has_seed || r->sampler.seed == g->sampler.seed);
    CHECK(r->max_tokens == -1 || r->max_tokens >= 1);
    CHECK(r->n_answer == g->resume.n_ids && r->n_sent == r->n_answer);
}

static void check_ready(const struct request *r, uint32_t context)
{
    struct sampler_fault f;
    CHECK(r->n_prompt >= 1 && r->answer_limit >= 1 && r->answer_limit <= ANSWER_CAP);
    CHECK((uint64_t)r->n_prompt + r->answer_limit <= context && (r->max_tokens < 0 || r->answer_limit <= r->max_tokens));
    for (uint32_t i = 0; i < r->n_prompt; i++)
        CHECK(r->prompt_ids[i] < N_TOKENS);
    for (uint32_t i = 0; i < r->sampler.n_bias; i++)
        CHECK(r->bias_ids[i] < N_TOKENS);
    CHECK(!sampler_has_fault(&r->sampler, &f) && r->sampler.n_prompt == r->n_prompt);
    CHECK(request_open_words(r, r->n_prompt + r->answer_limit) <= PLAN_OPEN_WORDS);
}

/* Of a resumed one the ids that its client has; then the room for the rest. */
static void check_taken_up(struct request *r)
{
    struct error err = {0};
    const uint32_t n_answer = r->n_answer;
    if (r->resumed) {
        struct resume_token right = r->token;
        CHECK(resume_token_check(&key, r, &r->token, &err) == STATUS_FORBIDDEN && is_refusal(err.status, &err));
        CHECK(resume_token_make(&key, r, &right, &err) == STATUS_OK);
        r->token = right;
        CHECK(resume_token_check(&key, r, &r->token, &err) == STATUS_OK);
        enum status s = request_take_up(r, tokenizer, &err);
        CHECK(s == STATUS_OK || is_refusal(s, &err));
        if (s != STATUS_OK)
            return;
        CHECK(r->n_answer == n_answer && n_answer <= r->answer_limit && r->emit.len == 0);
        for (uint32_t i = 0; i < n_answer; i++)
            CHECK(r->answer_ids[i] < N_TOKENS && (r->ignore_eos || r->answer_ids[i] != 257 || i + 1 == n_answer));
        CHECK(r->n_planned == (n_answer ? r->n_prompt + n_answer - 1 : 0));
        CHECK(r->over != FINISH_STOP || n_answer > 0);
    }
    CHECK(request_open_answer(r, r->answer_limit - r->n_answer, &err) == STATUS_OK && r->answer_room >= r->answer_limit);
}

static void take(const struct generate_request *g, uint32_t context)
{
    static const struct request_sink sink = {.ctx = NULL};
    const struct text_context text = {.tokenizer = tokenizer, .no_template = "the model has no chat template", .context = context,
                                      .answer_cap = ANSWER_CAP};
    struct request *r;
    struct error err = {0};
    enum status s = request_create(g, "peer", &sink, ARENA, &r, &err);
    if (s != STATUS_OK) {
        CHECK(is_refusal(s, &err));
        return;
    }
    check_made(r, g);
    s = text_prepare(&text, r, &err);
    CHECK(s == STATUS_OK || is_refusal(s, &err));
    if (s == STATUS_OK) {
        check_ready(r, context);
        check_taken_up(r);
    }
    request_drop_text(r);
    request_release(r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct generate_request g;
    struct arena a;
    struct error err;
    if (!tokenizer)
        open_vocabulary();
    if (size < 1 || size > MAX_SIZE)
        return 0;
    arena_init(&a, 0);
    if (inference_wire_unpack_request(data + 1, size - 1, &a, &g, &err) == STATUS_OK)
        take(&g, 16 + 4u * data[0]);
    arena_fini(&a);
    return 0;
}
