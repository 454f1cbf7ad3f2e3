/* stage/model_needs.h - what a range of a model's layers will take, for stage/memory_plan.h.
 *
 * Purpose    Fills the needs that follow from the weights and the assignment: a stage adds what it was told and what is free, `sluice
 *            model` what this machine has.
 * Ownership  The result points at the struct given: it must live while a plan is made.
 * Threading  Pure.
 * Errors     None.
 */
#ifndef SLUICE_STAGE_MODEL_NEEDS_H
#define SLUICE_STAGE_MODEL_NEEDS_H

#include "kernels/team.h"
#include "stage/kv.h"
#include "stage/memory_plan.h"
#include "stage/weights.h"

struct sized_stage {
    const struct weights *weights; /* planned */
    struct team *team;             /* that will compute: its threads have buffers of their own */
};

/* shape: of the assignment, kv_shape_of. */
struct memory_needs model_needs(const struct sized_stage *s, const struct msg_assign *a, const struct kv_shape *shape);

#endif
