/* sluice-stage-fake: the same flags and protocol as sluice-stage, computing with hash chains (fake_compute.h). */
#include "stage/stage_main.h"
#include "tests/lib/fake_compute.h"

static enum status create(const struct stage_setup *s, struct compute **out, struct error *err)
{
    const struct fake_options o = {
        .model_path = s->config->model, .script_path = s->config->script, .stage = s->stage, .life = s->life, .kv_fd = s->kv_fd};
    return fake_compute_create(&o, out, err);
}

int main(int argc, char **argv)
{
    return stage_main(argc, argv, create);
}
