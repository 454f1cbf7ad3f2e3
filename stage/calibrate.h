/* stage/calibrate.h - what ticks cost on this host, measured before READY.
 *
 * Purpose    Warm ticks of growing size fill the cost table of msg_loaded, which the planner starts from. They also touch every
 *            buffer and weight once. Measuring stops after about a second; larger sizes are then extended along the last
 *            measured slope (the planner fits its model to real ticks anyway).
 * Ownership  Uses a small KV pool of its own, so that a pool kept over a restart is not written to. The forward's pool is
 *            set by the caller afterwards.
 * Threading  The compute thread.
 * Errors     STATUS_OUT_OF_MEMORY.
 */
#ifndef SLUICE_STAGE_CALIBRATE_H
#define SLUICE_STAGE_CALIBRATE_H

#include "stage/forward.h"
#include "stage/kv.h"

struct calibrate_options {
    struct forward *forward;
    const struct weights *weights;
    struct kv_shape kv;
    uint32_t max_rows, slots, context;
};

/* Writes cost_rows, prompt_us, decode_us and attention_ns. */
enum status calibrate_run(const struct calibrate_options *o, atomic_uint_fast64_t *progress, struct msg_loaded *out,
                          struct error *err);

#endif
