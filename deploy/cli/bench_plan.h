/* deploy/cli/bench_plan.h - what is asked, and when.
 *
 * Purpose    Lengths, arrival times and request bodies as pure functions of the seed and a request's index, so that a run can be
 *            repeated against another server. Prompts are random words (or token ids), so that no prefix cache helps beyond
 *            the shared prefix that was asked for.
 * Ownership  plan_init/plan_fini in place; bodies are the caller's to free.
 * Threading  Pure after plan_init, but for the factors of plan_calibrate.
 * Errors     CONFIG from the parsers; OUT_OF_MEMORY.
 */
#ifndef SLUICE_DEPLOY_CLI_BENCH_PLAN_H
#define SLUICE_DEPLOY_CLI_BENCH_PLAN_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/error.h"

enum length_kind { LENGTH_FIXED, LENGTH_UNIFORM, LENGTH_LOGNORMAL };

struct length {
    enum length_kind kind;
    uint32_t min, max;
};

/* "N", "A-B" (uniform), "lognormal:A-B" (A and B two deviations from the median sqrt(AB); what falls outside is cut to them). */
enum status length_parse(const char *flag, const char *text, struct length *out, struct error *err);
uint32_t length_draw(const struct length *l, uint64_t seed, uint64_t index);

/* Seconds between arrival index-1 and index of a Poisson process of `rate` per second. */
double plan_arrival_gap_s(double rate, uint64_t seed, uint64_t index);

struct plan_options {
    const char *model;      /* NULL: not named */
    const char *extra_json; /* an object whose fields each body gets, or NULL */
    int is_chat;
    int has_ids;            /* prompts are arrays of ids in first_id..last_id; /v1/completions only */
    uint32_t first_id, last_id;
    uint32_t shared_prefix; /* tokens that every prompt begins with */
    double temperature;
    uint64_t seed;
};

struct plan {
    struct plan_options o;
    char *head;             /* the JSON that all bodies share, without its closing brace */
    double tokens_per_word; /* of this server's tokenizer; 1 until calibrated */
    double tokens_around;   /* that its template adds */
};

enum status plan_init(struct plan *p, const struct plan_options *o, struct error *err);
void plan_fini(struct plan *p);
const char *plan_path(const struct plan *p);
enum plan_flags {
    PLAN_OWN_PREFIX = 1, /* nothing shared */
    PLAN_TOKEN_IDS = 2,  /* events name their tokens, where the server knows that (Sluice, vLLM): several may come in one */
};

/* A body that asks for a prompt of about n_prompt tokens and an answer of n_answer. Every index has another prompt. flags: of
 * plan_flags. NULL: no memory. */
char *plan_body(const struct plan *p, uint64_t index, uint32_t n_prompt, uint32_t n_answer, int flags, size_t *len);
/* From the server's count of tokens for two prompts of these many words. */
void plan_calibrate(struct plan *p, uint32_t n_words_1, int64_t n_tokens_1, uint32_t n_words_2, int64_t n_tokens_2);

#endif
