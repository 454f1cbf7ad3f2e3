/* tests/sim/share.h - the scene of the share tests: streams that decode, prompts that come beside them.
 *
 * Purpose    One scene and one measure for the planner and for its mutant.
 * Ownership  As sim.h.
 * Threading  Pure.
 * Errors     None.
 */
#ifndef SLUICE_TESTS_SIM_SHARE_H
#define SLUICE_TESTS_SIM_SHARE_H

#include "tests/sim/sim.h"

enum { N_STREAMS = 4, N_TOKENS = 400 };

struct sim_options pipeline_of(uint32_t n_stages, double share);
uint32_t streams_and_prompts(struct sim_request *r, uint32_t n_prompts, uint32_t length); /* the number of requests */
/* The same streams without prompts and without noise. */
void run_alone(const struct sim_options *o, struct sim_result *out);
double alone_us(const struct sim_result *alone, uint32_t stream, uint32_t i, uint32_t j); /* token i to token j */
double share_excess_us(const struct sim_options *o, const struct sim_result *r, const struct sim_result *alone, double share);

#endif
