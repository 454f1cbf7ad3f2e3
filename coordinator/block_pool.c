#include "coordinator/block_pool.h"

#include <stdlib.h>
#include <string.h>

/* Takes a block out of the list of its state. Live blocks are in none: their links serve the twins. */
static void leave(struct block_pool *p, uint32_t i)
{
    struct block *k = &p->block[i];
    struct blocks_list *l = &p->list[k->state];
    l->n--;
    if (k->state == BLOCK_LIVE)
        return;
    *(k->prev == NO_BLOCK ? &l->head : &p->block[k->prev].next) = k->next;
    *(k->next == NO_BLOCK ? &l->tail : &p->block[k->next].prev) = k->prev;
}

/* Free blocks are a stack, so that the same memory is used again; the others leave as they came. */
static void enter(struct block_pool *p, uint32_t i, enum block_state state)
{
    struct block *k = &p->block[i];
    struct blocks_list *l = &p->list[state];
    k->state = state;
    k->next = k->prev = NO_BLOCK;
    l->n++;
    if (state == BLOCK_LIVE)
        return;
    if (state == BLOCK_FREE)
        k->next = l->head;
    else
        k->prev = l->tail;
    *(k->next == NO_BLOCK ? &l->tail : &p->block[k->next].prev) = i;
    *(k->prev == NO_BLOCK ? &l->head : &p->block[k->prev].next) = i;
}

void block_pool_move(struct block_pool *p, uint32_t i, enum block_state to)
{
    leave(p, i);
    enter(p, i, to);
}

enum status block_pool_make_room(struct block_pool *p, uint32_t n)
{
    if (p->block && n <= p->capacity)
        return STATUS_OK;
    struct block *block = malloc((n + (size_t)1) * sizeof *block);
    if (!block)
        return STATUS_OUT_OF_MEMORY;
    if (p->total) /* the old pool stands until all memory is there */
        memcpy(block, p->block, p->total * sizeof *block);
    free(p->block);
    p->block = block;
    p->capacity = n;
    return STATUS_OK;
}

void block_pool_forget(struct block_pool *p, uint32_t n)
{
    p->total = n;
    for (int s = 0; s < BLOCK_N_STATES; s++)
        p->list[s] = (struct blocks_list){.head = NO_BLOCK, .tail = NO_BLOCK};
    for (uint32_t i = n; i-- > 0;) {
        p->block[i] = (struct block){.entry = UINT32_MAX};
        enter(p, i, BLOCK_FREE);
    }
}

void block_pool_free(struct block_pool *p)
{
    free(p->block);
    *p = (struct block_pool){0};
}
