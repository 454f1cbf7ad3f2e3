/* tests/unit/engine/ground.h - a bed whose processes end and come back, and answers that go on over it.
 *
 * Purpose    Fake stages whose KV pools are kept by descriptor as a launcher keeps them, an engine that can be replaced, and
 *            answers that a client asks for again, by their token, when the engine that gave them is gone.
 * Ownership  ground_open/ground_close; the attempts of an answer end with answer_close.
 * Threading  The test's thread.
 * Errors     Failed cmocka assertions.
 */
#ifndef SLUICE_TESTS_UNIT_ENGINE_GROUND_H
#define SLUICE_TESTS_UNIT_ENGINE_GROUND_H

#include "tests/unit/engine/fake_bed.h"

enum { ANSWER_MAX_ATTEMPTS = 16 };

struct ground {
    struct engine_bed *b;
    uint32_t n_stages;
    int kv_fd[BED_MAX_STAGES];
    const char *script_path;
};

/* With this script; NULL: none. flags as of engine_bed_open. */
void ground_open(struct ground *g, uint32_t n_stages, const char *script_path, const char *const *flags);
void ground_close(struct ground *g);
uint32_t ground_count_fds(void); /* of this process */
/* Its process ends and another takes its place, with its pool (keep) or a new one. */
void ground_restart_stage(struct ground *g, uint32_t stage, int keep);

/* root: the first attempt that was accepted; it gathers what the others bring. */
struct answer {
    struct ground *g;
    struct bed_request *attempt[ANSWER_MAX_ATTEMPTS], *root;
    uint32_t n_attempts, n_ids; /* n_ids: asked for */
};

/* Random ids, drawn or greedy. */
void answer_ask(struct ground *g, struct answer *a, uint32_t n_prompt, uint32_t n_ids);
struct bed_request *answer_newest(struct answer *a);
/* After the engine's end: asks for the rest, if there is one. */
void answer_go_on(struct answer *a);
/* The newest attempt has ended: all ids are there, once, and the reference's. what: said when not. */
void answer_check(struct answer *a, const char *what);
void answer_close(struct answer *a);

#endif
