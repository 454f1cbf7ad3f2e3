/* sluice-fake-reference: the texts that a service on fake stages must give, computed with plain arrays (fake_compute.h).
 *
 * Reads requests from stdin and answers each on stdout, until stdin ends; little-endian 32-bit words, so that a test in another
 * language asks for prompts of tens of thousands of ids in milliseconds:
 *   request   layers, sampled (0: greedy, 1: with seed), seed low, seed high, n_prompt, n_out, then n_prompt ids
 *   answer    n_out ids
 * Exit code 2: a request that is none. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/lib/fake_compute.h"

enum { MAX_LAYERS = 4096, MAX_IDS = 1 << 26 };

struct request {
    uint32_t layers, sampled, seed_low, seed_high, n_prompt, n_out;
};

static int answer(const struct request *r, uint32_t *prompt, int32_t *out)
{
    const struct sampler_params sampler = {
        .temperature = (float)r->sampled, .top_p = 1, .seed = (uint64_t)r->seed_high << 32 | r->seed_low};
    if (fread(prompt, sizeof *prompt, r->n_prompt, stdin) != r->n_prompt)
        return 0;
    fake_reference(r->layers, &sampler, prompt, r->n_prompt, out, r->n_out);
    return fwrite(out, sizeof *out, r->n_out, stdout) == r->n_out && fflush(stdout) == 0;
}

int main(void)
{
    struct request r;
    while (fread(&r, sizeof r, 1, stdin) == 1) {
        if (!r.layers || r.layers > MAX_LAYERS || r.sampled > 1 || !r.n_prompt || r.n_prompt > MAX_IDS || !r.n_out || r.n_out > MAX_IDS)
            return 2;
        uint32_t *prompt = malloc(r.n_prompt * sizeof *prompt);
        int32_t *out = malloc(r.n_out * sizeof *out);
        int ok = prompt && out && answer(&r, prompt, out);
        free(prompt);
        free(out);
        if (!ok)
            return 2;
    }
    return 0;
}
