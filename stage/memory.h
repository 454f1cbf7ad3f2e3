/* stage/memory.h - what this process may still take, and big anonymous mappings.
 *
 * Purpose    The memory plan of a stage is checked against what is free before anything big is taken, because Linux grants
 *            memory first and kills later. Mappings ask for huge pages.
 * Ownership  memory_map/memory_unmap.
 * Threading  Any.
 * Errors     memory_available gives 0 when nothing could be read. memory_map: STATUS_OUT_OF_MEMORY.
 */
#ifndef SLUICE_STAGE_MEMORY_H
#define SLUICE_STAGE_MEMORY_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/error.h"

/* Bytes: the smaller of MemAvailable and of what every memory cgroup (v2 or v1) above this process still allows; page
 * cache that the kernel can drop counts as free in both. root: "" (tests give a folder that holds proc and sys). */
uint64_t memory_available(const char *root);
/* Bytes that this process may still map under its own limit (ulimit -v); UINT64_MAX: it has none. Never 0. */
uint64_t memory_mappable(const char *root);
/* Of `room` bytes those that this process may map; 0: nobody knows the room, and its own limit is all there is to go by. */
uint64_t memory_within_limit(uint64_t room);

struct memory_region {
    uint8_t *data; /* aligned to 2 MiB when larger, zeroed */
    size_t bytes;
    void *mapping;
    size_t mapping_bytes;
};

enum status memory_map(size_t bytes, struct memory_region *out, struct error *err);
void memory_unmap(struct memory_region *r); /* also of a zeroed region */

/* "1.4 GiB" or "23.0 MiB". */
struct memory_text {
    char text[24];
};
struct memory_text memory_print(uint64_t bytes);

#endif
