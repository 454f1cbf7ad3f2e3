#include "stage/memory_plan.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "stage/memory.h"

enum { MAX_BLOCKS = UINT32_MAX / 2, MIN_CONTEXT = 16, MIN_ROWS = 16, MOST_STAGES = 64 };

uint64_t memory_plan_per_slot(const struct memory_needs *n)
{
    return ((uint64_t)n->context + n->kv_block - 1) / n->kv_block;
}

uint64_t memory_plan_fixed(const struct memory_needs *n)
{
    return n->weights + n->buffers + n->slots * n->sampler + MEMORY_PLAN_SLACK;
}

static uint64_t less(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* More than there can be where the product has no end. */
static uint64_t kv_bytes(const struct memory_needs *n, uint64_t blocks)
{
    const uint64_t n_window = kv_window_blocks(&n->window, blocks < UINT32_MAX ? (uint32_t)blocks : UINT32_MAX);
    uint64_t bytes, window_bytes;
    if (__builtin_mul_overflow(blocks, n->block_bytes, &bytes) ||
        __builtin_mul_overflow(n_window, n->window_block_bytes, &window_bytes) || bytes > UINT64_MAX / 8 ||
        window_bytes > UINT64_MAX / 8)
        return UINT64_MAX / 4;
    return bytes + window_bytes;
}

/* The most blocks that so many bytes hold. Blocks of both kinds grow together, but not in step. */
static uint64_t blocks_in(const struct memory_needs *n, uint64_t bytes)
{
    if (!n->window.window)
        return bytes / n->block_bytes;
    uint64_t low = 0, high = MAX_BLOCKS;
    while (low < high) {
        const uint64_t middle = low + (high - low + 1) / 2;
        if (kv_bytes(n, middle) <= bytes)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* Bytes that KV may take: what is left, and where nobody has said how much it shall be at most half of what is free. What a
 * pool holds already is on top of what is free. */
static uint64_t room_for_kv(const struct memory_needs *n)
{
    if (!n->free)
        return UINT64_MAX;
    const uint64_t fixed = memory_plan_fixed(n), left = n->free > fixed ? n->free - fixed + n->held_bytes : 0;
    return n->asked_blocks || n->asked_kv_bytes ? left : less(left, n->most_kv ? n->most_kv : n->free / 2);
}

/* As asked for; else a context for every slot as far as there is room, the same as before where a pool is kept, since what
 * is free has changed by its own size. */
static uint64_t choose_blocks(const struct memory_needs *n)
{
    if (n->asked_blocks)
        return n->asked_blocks;
    if (n->asked_kv_bytes)
        return blocks_in(n, n->asked_kv_bytes);
    const uint64_t per_slot = memory_plan_per_slot(n), all = n->slots * per_slot;
    if (n->kept_blocks >= per_slot && n->kept_blocks <= all)
        return n->kept_blocks;
    const uint64_t room = less(all, blocks_in(n, room_for_kv(n)));
    return room < per_slot ? per_slot : room; /* one must fit */
}

static uint64_t total_bytes(const struct memory_needs *n, uint64_t blocks)
{
    const uint64_t kv = kv_bytes(n, blocks);
    return memory_plan_fixed(n) + kv - less(n->held_bytes, kv);
}

static int fits(const struct memory_needs *n, uint64_t blocks)
{
    return blocks && blocks <= MAX_BLOCKS && (!n->free || total_bytes(n, blocks) <= n->free) &&
           (n->asked_blocks || n->asked_kv_bytes || n->kept_blocks == blocks || kv_bytes(n, blocks) <= room_for_kv(n));
}

/* --- what to do --------------------------------------------------------------------------------------------------------- */

/* A list of measures as text, "A, B or C" at its end. */
struct advice {
    char items[4][96];
    int n;
};

#define ADVISE(advice, ...) ((void)snprintf((advice)->items[(advice)->n++], sizeof(advice)->items[0], __VA_ARGS__))

static void advise_kv(const struct memory_needs *n, struct advice *a)
{
    const uint64_t blocks = blocks_in(n, room_for_kv(n)), mib = kv_bytes(n, blocks) >> 20;
    if (n->asked_blocks && blocks)
        ADVISE(a, "--kv-blocks %" PRIu64 " or fewer", blocks);
    else if (!n->asked_blocks && n->asked_kv_bytes && mib << 20 >= kv_bytes(n, 1))
        ADVISE(a, "--kv-mib %" PRIu64 " or less", mib);
    else if (!n->asked_blocks && !n->asked_kv_bytes && blocks * n->kv_block >= MIN_CONTEXT && blocks < memory_plan_per_slot(n))
        ADVISE(a, "--context %" PRIu64 " or less", blocks * n->kv_block);
}

static void advise_rows(const struct memory_needs *n, struct advice *a)
{
    struct memory_needs fewer = *n;
    const uint64_t least = n->slots > MIN_ROWS ? n->slots : MIN_ROWS;
    for (uint64_t rows = n->max_rows / 2; n->buffers_of && rows >= least; rows /= 2) {
        fewer.max_rows = fewer.window.max_rows = (uint32_t)rows;
        fewer.buffers = n->buffers_of(n->buffers_ctx, fewer.max_rows);
        if (fits(&fewer, choose_blocks(&fewer))) {
            ADVISE(a, "--max-rows %" PRIu64 " or fewer", rows);
            return;
        }
    }
}

/* KV is no matter of slots where nobody has said how much it shall be: one context must fit. */
static void advise_slots(const struct memory_needs *n, struct advice *a)
{
    struct memory_needs fewer = *n;
    for (uint32_t slots = n->slots / 2; n->sampler && slots; slots /= 2) {
        fewer.slots = fewer.window.slots = slots;
        if (fits(&fewer, choose_blocks(&fewer))) {
            ADVISE(a, "--slots %u or fewer", slots);
            return;
        }
    }
}

/* Memory of this machine gets no more by stages that share it: the further ones must stand elsewhere. */
static void advise_stages(const struct memory_needs *n, struct advice *a)
{
    for (uint32_t stages = n->n_stages + 1; stages <= less(n->model_layers, MOST_STAGES); stages++) {
        const uint32_t layers = (n->model_layers + stages - 1) / stages;
        struct memory_needs part = *n;
        if (layers >= n->n_layers)
            continue;
        part.weights = (n->weights - n->head) / n->n_layers * layers + n->head;
        part.block_bytes = n->block_bytes / n->n_layers * layers;
        part.window_block_bytes = n->window_block_bytes / n->n_layers * layers;
        part.kept_blocks = part.held_bytes = 0;
        if (fits(&part, choose_blocks(&part))) {
            ADVISE(a, "%u stages instead of %u, the further ones on other machines", stages, n->n_stages);
            return;
        }
    }
}

struct sampler_text {
    char text[48];
};

/* ", samplers 128.0 MiB", where there are any. */
static struct sampler_text print_samplers(const struct memory_needs *n)
{
    struct sampler_text t = {""};
    if (n->sampler)
        snprintf(t.text, sizeof t.text, ", samplers %s", memory_print(n->slots * n->sampler).text);
    return t;
}

/* "5.1 GiB of 3.9 GiB"; in MiB where they are too near each other for that. */
static struct memory_plan_text print_pair(uint64_t needs, uint64_t has)
{
    struct memory_plan_text t;
    snprintf(t.text, sizeof t.text, "%s of %s", memory_print(needs).text, memory_print(has).text);
    if (strcmp(memory_print(needs).text, memory_print(has).text) == 0)
        snprintf(t.text, sizeof t.text, "%.1f of %.1f MiB", (double)needs / (1 << 20), (double)has / (1 << 20));
    return t;
}

static enum status refuse(const struct memory_needs *n, uint64_t blocks, struct error *err)
{
    struct advice a = {.n = 0};
    char list[sizeof a.items + 32] = "";
    advise_kv(n, &a);
    advise_rows(n, &a);
    advise_slots(n, &a);
    advise_stages(n, &a);
    for (int i = 0; i < a.n; i++) {
        const size_t len = strlen(list);
        snprintf(list + len, sizeof list - len, "%s%s", i == 0 ? "" : i + 1 < a.n ? ", " : " or ", a.items[i]);
    }
    const int is_auto = !n->asked_blocks && !n->asked_kv_bytes;
    return error_set(err, STATUS_OUT_OF_MEMORY, "needs %s: %s (weights %s, KV %s%s, buffers %s%s, %s besides)",
                     print_pair(total_bytes(n, blocks), n->free).text, a.n ? list : "it takes more memory",
                     memory_print(n->weights).text, memory_print(kv_bytes(n, blocks)).text,
                     is_auto ? " for one context, at most half of all" : "", memory_print(n->buffers).text,
                     print_samplers(n).text, memory_print(MEMORY_PLAN_SLACK).text);
}

enum status memory_plan_make(const struct memory_needs *n, struct memory_plan *out, struct error *err)
{
    const uint64_t blocks = choose_blocks(n);
    if (blocks == 0 || blocks > MAX_BLOCKS)
        return error_set(err, STATUS_OUT_OF_MEMORY, "a KV pool of %" PRIu64 " blocks of %s cannot be: --kv-mib %" PRIu64 " at least",
                         blocks, memory_print(kv_bytes(n, 1)).text, (kv_bytes(n, 1) + (1 << 20) - 1) >> 20);
    if (!fits(n, blocks))
        return refuse(n, blocks, err);
    *out = (struct memory_plan){.n_blocks = (uint32_t)blocks, .kv = kv_bytes(n, blocks), .total = total_bytes(n, blocks)};
    return STATUS_OK;
}

struct memory_plan_text memory_plan_print(const struct memory_needs *n, const struct memory_plan *p)
{
    struct memory_plan_text t;
    const uint64_t contexts = p->n_blocks / memory_plan_per_slot(n);
    char room[64] = "every slot's context";
    if (contexts < n->slots)
        snprintf(room, sizeof room, "%" PRIu64 " of %u contexts of %u", contexts, n->slots, n->context);
    snprintf(t.text, sizeof t.text, "weights %s, KV %s (%u blocks of %u: %s), buffers %s%s: %s%s%s", memory_print(n->weights).text,
             memory_print(p->kv).text, p->n_blocks, n->kv_block, room, memory_print(n->buffers).text, print_samplers(n).text,
             memory_print(p->total).text, n->free ? " of " : "", n->free ? memory_print(n->free).text : "");
    return t;
}
