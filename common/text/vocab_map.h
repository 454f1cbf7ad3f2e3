/* common/text/vocab_map.h - bytes of a token to its id.
 *
 * Purpose    Open-addressed hash table over texts that others own. Where two tokens have the same bytes the lowest id
 *            stays. The hash is keyed with random bytes, so that no file can make every token collide.
 * Ownership  vocab_map_init/fini; the texts must outlive it.
 * Threading  Read-only after the last add.
 * Errors     STATUS_OUT_OF_MEMORY at init.
 */
#ifndef SLUICE_COMMON_TEXT_VOCAB_MAP_H
#define SLUICE_COMMON_TEXT_VOCAB_MAP_H

#include "common/model/gguf.h"

#define VOCAB_NO_ID UINT32_MAX

struct vocab_map {
    const struct text *texts; /* [n] by id */
    uint32_t *slots;          /* ids, VOCAB_NO_ID: free */
    size_t mask;
    uint64_t seed;
};

uint64_t vocab_seed(void);
enum status vocab_map_init(struct vocab_map *m, const struct text *texts, uint32_t n);
void vocab_map_fini(struct vocab_map *m);
void vocab_map_add(struct vocab_map *m, uint32_t id); /* ids in ascending order */
uint32_t vocab_map_find(const struct vocab_map *m, const char *bytes, size_t len); /* VOCAB_NO_ID: none */

#endif
