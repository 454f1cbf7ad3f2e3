#include "rpc/grpc/sampler_wire.h"

void sampler_pack(const struct sampler_params *s, int has_seed, const uint32_t *bias_ids, const float *bias,
                  Sluice__V1__Sampler *out)
{
    sluice__v1__sampler__init(out);
    out->temperature = s->temperature;
    out->top_p_choice_case = SLUICE__V1__SAMPLER__TOP_P_CHOICE_TOP_P;
    out->top_p = s->top_p;
    out->min_p = s->min_p;
    out->top_k = s->top_k;
    out->repeat_penalty = s->repeat_penalty;
    out->presence_penalty = s->presence_penalty;
    out->frequency_penalty = s->frequency_penalty;
    out->typical_p = s->typical_p;
    out->repeat_last_n = s->repeat_last_n;
    out->n_prompt = s->n_prompt;
    out->n_top = s->n_top;
    out->n_bias_ids = out->n_bias = s->n_bias;
    out->bias_ids = (uint32_t *)(uintptr_t)bias_ids;
    out->bias = (float *)(uintptr_t)bias;
    if (has_seed) {
        out->seed_choice_case = SLUICE__V1__SAMPLER__SEED_CHOICE_SEED;
        out->seed = s->seed;
    }
}

/* A zero below zero is one: on the way back it would be the default, and not the same bits. */
static float plain_zero(float value)
{
    return value + 0.0f;
}

static enum status check_bias(const Sluice__V1__Sampler *m, struct error *err)
{
    if (m->n_bias_ids != m->n_bias || m->n_bias > MAX_BIASES)
        return error_param(err, STATUS_BAD_REQUEST, "logit_bias", "", "%zu biases of %zu ids, at most %d", m->n_bias,
                           m->n_bias_ids, MAX_BIASES);
    for (size_t i = 0; i < m->n_bias; i++)
        if (!sampler_bias_is_allowed(m->bias[i]))
            return error_param(err, STATUS_BAD_REQUEST, "logit_bias", "", "logit_bias %g of id %u, allowed are -100 to 100",
                               (double)m->bias[i], m->bias_ids[i]);
    return STATUS_OK;
}

static void unpack(const Sluice__V1__Sampler *m, struct sampler_params *s)
{
    s->temperature = plain_zero(m->temperature);
    if (m->top_p_choice_case == SLUICE__V1__SAMPLER__TOP_P_CHOICE_TOP_P)
        s->top_p = plain_zero(m->top_p);
    s->min_p = plain_zero(m->min_p);
    s->top_k = m->top_k;
    if (m->seed_choice_case == SLUICE__V1__SAMPLER__SEED_CHOICE_SEED)
        s->seed = m->seed;
    s->repeat_penalty = plain_zero(m->repeat_penalty);
    s->presence_penalty = plain_zero(m->presence_penalty);
    s->frequency_penalty = plain_zero(m->frequency_penalty);
    s->typical_p = plain_zero(m->typical_p);
    s->repeat_last_n = m->repeat_last_n;
    s->n_prompt = m->n_prompt;
    s->n_top = m->n_top;
    s->n_bias = (uint32_t)m->n_bias;
}

enum status sampler_unpack(const Sluice__V1__Sampler *m, struct sampler_params *out, int *has_seed, struct error *err)
{
    struct sampler_params s = {.top_p = 1};
    struct sampler_fault f;
    if (m) {
        TRY(check_bias(m, err));
        unpack(m, &s);
    }
    if (sampler_has_fault(&s, &f))
        return error_param(err, STATUS_BAD_REQUEST, f.name, "", "%s %g, allowed are %g to %g", f.name, f.value, f.min, f.max);
    *has_seed = m && m->seed_choice_case == SLUICE__V1__SAMPLER__SEED_CHOICE_SEED;
    *out = s;
    return STATUS_OK;
}
