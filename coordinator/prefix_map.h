/* coordinator/prefix_map.h - full KV blocks by what they hold and what stands before them.
 *
 * Purpose    A tree of entries, one a block of a chain: found by a keyed hash over (the parent's hash, salt, items), and
 *            believed only if parent, salt and every item agree. Which physical block an entry stands for is a number that
 *            the owner may move. It knows nothing of holders or age (blocks.c).
 * Ownership  prefix_map_create/destroy. Chains are read during the call.
 * Threading  Engine thread only.
 * Invariants 1. An entry's parent is in the map: entries are removed from the tail of a chain.
 *            2. No two entries have the same parent, salt and items.
 * Errors     OUT_OF_MEMORY (create, reset); nothing else allocates.
 */
#ifndef SLUICE_COORDINATOR_PREFIX_MAP_H
#define SLUICE_COORDINATOR_PREFIX_MAP_H

#include "coordinator/blocks.h"

enum { NO_ENTRY = UINT32_MAX }; /* also: the parent of a chain's first block */

struct prefix_map;

enum status prefix_map_create(uint32_t kv_block, uint64_t hash_key, uint32_t hash_bits, struct prefix_map **out);
void prefix_map_destroy(struct prefix_map *m);
/* Empties it; room for n entries. Allocates if n grew; on OUT_OF_MEMORY nothing changed. */
enum status prefix_map_reset(struct prefix_map *m, uint32_t n);

/* The entry of block `index` of the chain (all its items must be known) below parent, or NO_ENTRY. *key: its hash. */
uint32_t prefix_map_find(const struct prefix_map *m, uint32_t parent, const struct block_chain *c, uint32_t index,
                         uint64_t *key);
/* After a find that found nothing, with its key. There must be room: as many entries as blocks suffice. */
uint32_t prefix_map_enter(struct prefix_map *m, uint32_t parent, const struct block_chain *c, uint32_t index, uint64_t key,
                          uint32_t block);
void prefix_map_remove(struct prefix_map *m, uint32_t entry); /* no entry may have it as its parent */

uint32_t prefix_map_block(const struct prefix_map *m, uint32_t entry);
void prefix_map_move(struct prefix_map *m, uint32_t entry, uint32_t block);
uint32_t prefix_map_parent(const struct prefix_map *m, uint32_t entry);
uint64_t prefix_map_key(const struct prefix_map *m, uint32_t entry);
uint32_t prefix_map_count(const struct prefix_map *m);

int prefix_map__check(const struct prefix_map *m, const char **why);

#endif
