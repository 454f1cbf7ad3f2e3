#include "rpc/grpc/sampler_wire.h"

#include <math.h>

void sampler_pack(const struct sampler_params *s, int has_seed, Sluice__V1__Sampler *out)
{
    sluice__v1__sampler__init(out);
    out->temperature = s->temperature;
    out->top_p_choice_case = SLUICE__V1__SAMPLER__TOP_P_CHOICE_TOP_P;
    out->top_p = s->top_p;
    out->min_p = s->min_p;
    out->top_k = s->top_k;
    if (has_seed) {
        out->seed_choice_case = SLUICE__V1__SAMPLER__SEED_CHOICE_SEED;
        out->seed = s->seed;
    }
}

static enum status check(float value, float max, const char *name, struct error *err)
{
    if (!isfinite(value) || value < 0 || value > max)
        return error_param(err, STATUS_BAD_REQUEST, name, "", "%s %g, allowed are 0 to %g", name, (double)value, (double)max);
    return STATUS_OK;
}

enum status sampler_unpack(const Sluice__V1__Sampler *m, struct sampler_params *out, int *has_seed, struct error *err)
{
    struct sampler_params s = {.top_p = 1};
    if (m) {
        s.temperature = m->temperature;
        if (m->top_p_choice_case == SLUICE__V1__SAMPLER__TOP_P_CHOICE_TOP_P)
            s.top_p = m->top_p;
        s.min_p = m->min_p;
        s.top_k = m->top_k;
        if (m->seed_choice_case == SLUICE__V1__SAMPLER__SEED_CHOICE_SEED)
            s.seed = m->seed;
    }
    TRY(check(s.temperature, 1e6f, "temperature", err));
    TRY(check(s.top_p, 1, "top_p", err));
    TRY(check(s.min_p, 1, "min_p", err));
    *has_seed = m && m->seed_choice_case == SLUICE__V1__SAMPLER__SEED_CHOICE_SEED;
    *out = s;
    return STATUS_OK;
}
