/* sluice-stage: a stage that runs a model. */
#include "stage/model_compute.h"
#include "stage/stage_main.h"

static enum status create(const struct stage_setup *s, struct compute **out, struct error *err)
{
    if (!s->config->model)
        return error_set(err, STATUS_CONFIG, "--model FILE is needed");
    const struct model_compute_options o = {.model_path = s->config->model,
                                            .backend = s->config->backend,
                                            .isa = s->config->isa,
                                            .n_threads = s->n_threads,
                                            .cores = s->n_cores ? s->cores : NULL,
                                            .kv_fd = s->kv_fd,
                                            .host_stages = s->host_stages,
                                            .restarted = s->life > 0};
    return model_compute_create(&o, out, err);
}

int main(int argc, char **argv)
{
    return stage_main(argc, argv, create);
}
