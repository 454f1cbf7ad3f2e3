/* tests/sim/share.h - the scenes of the planner's tests, and what is measured of them.
 *
 * Purpose    One scene and one measure for the planner and for its mutants: streams that decode, prompts that come beside them.
 * Ownership  As sim.h.
 * Threading  Pure.
 * Errors     None.
 */
#ifndef SLUICE_TESTS_SIM_SHARE_H
#define SLUICE_TESTS_SIM_SHARE_H

#include "tests/sim/sim.h"

enum { N_STREAMS = 4, N_TOKENS = 400 };

struct sim_options pipeline_of(uint32_t n_stages, double share);
/* The stages of the failure cases: 4 ms a tick, 0.1 ms a decode row, 0.25 ms a prompt token each; stall 200 ms, share 0.5. */
struct sim_options case_pipeline(uint32_t n_stages);
uint32_t streams_and_prompts(struct sim_request *r, uint32_t n_prompts, uint32_t length); /* the number of requests */
/* The same streams without prompts and without noise. */
void run_alone(const struct sim_options *o, struct sim_result *out);
double alone_us(const struct sim_result *alone, uint32_t stream, uint32_t i, uint32_t j); /* token i to token j */
/* How far the share inequality is exceeded over every window of every stream, in us: at most 0 where it holds. */
double share_excess_us(const struct sim_options *o, const struct sim_result *r, const struct sim_result *alone, double share);
/* Part of their speed that the streams have over the first n tokens after from_us, least of all streams. */
double kept_share(const struct sim_result *r, const struct sim_result *alone, double from_us, uint32_t n);
double longest_gap_us(const struct sim_result *r, uint32_t first, uint32_t end); /* requests first..end-1 */
double rate_between(const struct sim_tokens *t, double from_us, double to_us);   /* tokens per us */

#endif
