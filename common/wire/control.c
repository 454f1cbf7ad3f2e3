#include "common/wire/control.h"

#include <string.h>

#include "common/base/check.h"

const char *assign_difference(const struct msg_assign *a, const struct msg_assign *b)
{
    const struct {
        const char *name;
        uint64_t a, b;
    } fields[] = {
        {"stage", a->stage, b->stage},
        {"n_stages", a->n_stages, b->n_stages},
        {"first_layer", a->first_layer, b->first_layer},
        {"end_layer", a->end_layer, b->end_layer},
        {"slots", a->slots, b->slots},
        {"context", a->context, b->context},
        {"kv_block", a->kv_block, b->kv_block},
        {"n_blocks", a->n_blocks, b->n_blocks},
        {"max_rows", a->max_rows, b->max_rows},
        {"kv_bytes", a->kv_bytes, b->kv_bytes},
        {"heartbeat_ms", a->heartbeat_ms, b->heartbeat_ms},
        {"stuck_ms", a->stuck_ms, b->stuck_ms},
        {"window", a->window, b->window},
    };
    for (size_t i = 0; i < ARRAY_LEN(fields); i++)
        if (fields[i].a != fields[i].b)
            return fields[i].name;
    return strncmp(a->kv_type, b->kv_type, sizeof a->kv_type) == 0 ? NULL : "kv_type";
}
