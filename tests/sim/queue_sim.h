/* tests/sim/queue_sim.h - admission in front of a plain server, on virtual time.
 *
 * Purpose    n slots, each of which reads prompts and writes answers at a fixed rate, in steps of 20 ms. The order, the bounds
 *            and the times that are told come from the real admission; nothing else of the engine is there, so that what the
 *            tests see is admission's doing. One scene is here because its mutant runs it too.
 * Ownership  queue_sim_create/destroy.
 * Threading  Pure: no clock, draws by seed and step.
 * Errors     None; what admission says is returned.
 */
#ifndef SLUICE_TESTS_SIM_QUEUE_SIM_H
#define SLUICE_TESTS_SIM_QUEUE_SIM_H

#include <stdint.h>

#include "common/base/clock.h"
#include "coordinator/admission.h"

enum { QUEUE_SIM_SLOTS = 16, QUEUE_SIM_CLIENTS = 64, QUEUE_SIM_JOBS = 4096 };
static const int64_t QUEUE_SIM_STEP_NS = 20 * NS_PER_MS;

struct queue_sim_options {
    struct admission_limits limits; /* n_slots <= QUEUE_SIM_SLOTS */
    double prompt_per_s, answer_per_s; /* tokens, in each slot */
};

struct queue_sim_request {
    uint64_t client;      /* below QUEUE_SIM_CLIENTS its service is counted */
    uint32_t n_prompt, n_answer;
    int batch;
};

struct queue_sim_job {
    struct admission_item item;
    struct queue_sim_request r;
    double prompt_left, answered;
    struct queue_sim_job *next_free;
};

struct queue_sim {
    struct queue_sim_options o;
    struct admission *a;
    int64_t now_ns;
    struct queue_sim_job *slot[QUEUE_SIM_SLOTS]; /* NULL: free */
    struct queue_sim_job *unused;
    double served[QUEUE_SIM_CLIENTS], served_class[2]; /* tokens, as they are read and written */
    double granted[QUEUE_SIM_CLIENTS];                 /* tokens of all requests that began: none is interrupted */
    uint32_t n_waiting[QUEUE_SIM_CLIENTS], n_here[QUEUE_SIM_CLIENTS];
    uint64_t n_started, n_finished, n_refused, n_expired;
    double finished_tokens;
    double longest_wait_s, longest_wait_of[QUEUE_SIM_CLIENTS], longest_wait_class[2];
    struct queue_sim_job jobs[QUEUE_SIM_JOBS];
};

struct queue_sim *queue_sim_create(const struct queue_sim_options *o);
void queue_sim_destroy(struct queue_sim *q);
enum status queue_sim_submit(struct queue_sim *q, const struct queue_sim_request *r, struct error *err);
/* A step of time: slots work, those who are done leave, deadlines pass, free slots are filled. */
void queue_sim_step(struct queue_sim *q);
void queue_sim_until(struct queue_sim *q, int64_t ns);

/* A request of random size up to the largest; answers differ by up to the spread. */
struct queue_sim_request queue_sim_draw(uint64_t client, uint64_t seed, uint64_t n);
enum { QUEUE_SIM_SPREAD = 60, QUEUE_SIM_LARGEST = 600 + 20 + QUEUE_SIM_SPREAD };
/* Client c < n_clients submits drawn requests until keep[c] of it wait; *n counts the draws. */
void queue_sim_keep(struct queue_sim *q, const uint32_t *keep, uint32_t n_clients, uint64_t seed, uint64_t *n);

/* Test 10 of scheduling.md: client 0 keeps 100 requests waiting, three others two each, n_slots slots. The most tokens that one
 * of the others was ever behind its fair part of what was granted, less what is promised: one largest request, and by how much
 * the answers that are being written may differ from what was expected. <= 0: the promise holds. */
double queue_sim_flood(uint32_t n_slots, uint64_t seed);

#endif
