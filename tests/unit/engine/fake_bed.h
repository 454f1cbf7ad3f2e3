/* tests/unit/engine/fake_bed.h - an engine with fake stages, and requests that know their reference.
 *
 * Purpose    What the tests of the engine share: a bed under a script (tests/lib/README.md), random prompts from one seed, and
 *            the check that an answer is what the hash chain gives.
 * Ownership  bed_open/bed_close; requests are the bed's.
 * Threading  The test's thread.
 * Errors     Failed cmocka assertions.
 */
#ifndef SLUICE_TESTS_UNIT_ENGINE_FAKE_BED_H
#define SLUICE_TESTS_UNIT_ENGINE_FAKE_BED_H

#include "tests/lib/engine_bed.h"
#include "tests/lib/fake_compute.h"
#include "tests/lib/fake_script.h"

enum { WAIT_MS = 20000, MAX_REQUESTS = 256 };
#define FLAGS(...) ((const char *const[]){__VA_ARGS__, NULL})

struct bed {
    struct engine_bed *b;
    char script[FAKE_SCRIPT_PATH];
    const char *profile;       /* numerics of stages that start from now on; NULL: the fake's own */
    int kv_fd[BED_MAX_STAGES]; /* -1: a stage's pool ends with its process */
    struct bed_request *r[MAX_REQUESTS];
    uint32_t n;
};

struct bed *bed_open(uint32_t n_stages, const char *script, const char *const *flags);
/* With a prefix map whose hash has so few bits that blocks collide. */
struct bed *bed_open_hash(uint32_t n_stages, const char *script, const char *const *flags, uint32_t hash_bits);
/* The KV pool of each stage outlives its process from now on, as the launcher's do. */
void bed_keep_kv(struct bed *t);
void bed_close(struct bed *t);

uint32_t below(uint32_t n); /* drawn from the seed of the test program */
void sleep_ms(uint32_t ms);

/* Draws how it is sampled: one in three with a temperature, half of them with penalties, half with logprobs. */
void vary_sampler(struct bed_request *r);
/* All logprobs that came are the fake's, by their positions. */
void check_logprobs(const struct bed_request *r);
/* A request of random ids, sampled as vary_sampler draws. add leaves it unsent. */
struct bed_request *add(struct bed *t, uint32_t n_prompt, uint32_t n_out);
struct bed_request *start(struct bed *t, uint32_t n_prompt, uint32_t n_out);
/* Ids are the reference's, all of them when it ended well; the text is theirs. */
void check_answer(struct bed *t, const struct bed_request *r);
void wait_all(struct bed *t);
void wait_ids(struct bed_request *r, uint32_t n);
void canary(struct bed *t);

#endif
