#include "coordinator/slots.h"

#include <stdlib.h>

#include "common/base/check.h"
#include "common/base/trace.h"

struct slot {
    uint64_t seq;
    enum slot_state state;
};

struct slots {
    uint32_t n_slots;
    uint32_t n_in[SLOT_N_STATES];
    uint64_t next_seq;
    struct slot slot[];
};

static const unsigned char may_move[SLOT_N_STATES][SLOT_N_STATES] = {
    [SLOT_FREE] = {[SLOT_READING] = 1},
    [SLOT_READING] = {[SLOT_DECODING] = 1, [SLOT_FREE] = 1},
    [SLOT_DECODING] = {[SLOT_FREE] = 1},
};

/* The only place where a slot changes state. */
static void move(struct slots *s, struct slot *slot, enum slot_state to)
{
    ASSERT(may_move[slot->state][to]);
    trace_event("slot move", slot - s->slot, (int64_t)slot->seq, slot->state, to);
    s->n_in[slot->state]--;
    s->n_in[to]++;
    slot->state = to;
    if (to == SLOT_FREE)
        slot->seq = 0;
    ASSERT(slots__check(s, &(const char *){0}));
}

static struct slot *find(struct slots *s, struct slot_ref ref)
{
    if (ref.slot >= s->n_slots || ref.seq == 0 || s->slot[ref.slot].seq != ref.seq)
        return NULL;
    return &s->slot[ref.slot];
}

enum status slots_create(uint32_t n_slots, struct slots **out)
{
    CHECK(n_slots >= 1 && n_slots <= SLOTS_MAX);
    struct slots *s = calloc(1, sizeof *s + n_slots * sizeof s->slot[0]);
    if (!s)
        return STATUS_OUT_OF_MEMORY;
    s->n_slots = n_slots;
    s->n_in[SLOT_FREE] = n_slots;
    s->next_seq = 1;
    *out = s;
    return STATUS_OK;
}

void slots_destroy(struct slots *s)
{
    free(s);
}

enum status slots_acquire(struct slots *s, struct slot_ref *ref)
{
    for (uint32_t i = 0; i < s->n_slots; i++) {
        struct slot *slot = &s->slot[i];
        if (slot->state != SLOT_FREE)
            continue;
        slot->seq = s->next_seq++;
        move(s, slot, SLOT_READING);
        *ref = (struct slot_ref){.slot = i, .seq = slot->seq};
        return STATUS_OK;
    }
    return STATUS_SLOTS_BUSY;
}

enum status slots_begin_decoding(struct slots *s, struct slot_ref ref)
{
    struct slot *slot = find(s, ref);
    if (!slot || slot->state != SLOT_READING)
        return STATUS_SLOT_STALE;
    move(s, slot, SLOT_DECODING);
    return STATUS_OK;
}

enum status slots_release(struct slots *s, struct slot_ref ref)
{
    struct slot *slot = find(s, ref);
    if (!slot)
        return STATUS_SLOT_STALE;
    move(s, slot, SLOT_FREE);
    return STATUS_OK;
}

uint32_t slots_count(const struct slots *s, enum slot_state state)
{
    return s->n_in[state];
}

enum slot_state slots_at(const struct slots *s, uint32_t slot, uint64_t *seq)
{
    CHECK(slot < s->n_slots);
    *seq = s->slot[slot].seq;
    return s->slot[slot].state;
}

const char *slot_state_name(enum slot_state state)
{
    static const char *const names[SLOT_N_STATES] = {"free", "reading", "decoding"};
    return state >= 0 && state < SLOT_N_STATES ? names[state] : "?";
}

int slots__check(const struct slots *s, const char **why)
{
    uint32_t n_in[SLOT_N_STATES] = {0};
    *why = NULL;
    for (uint32_t i = 0; i < s->n_slots && !*why; i++) {
        const struct slot *slot = &s->slot[i];
        n_in[slot->state]++;
        if ((slot->state == SLOT_FREE) != (slot->seq == 0))
            *why = "a free slot has sequence id 0, every other slot one";
        else if (slot->seq >= s->next_seq)
            *why = "a sequence id is given out once";
        for (uint32_t j = 0; j < i && !*why; j++)
            if (slot->seq != 0 && s->slot[j].seq == slot->seq)
                *why = "two slots have different sequence ids";
    }
    for (int st = 0; st < SLOT_N_STATES && !*why; st++)
        if (n_in[st] != s->n_in[st])
            *why = "the counts are those of the table";
    return !*why;
}
