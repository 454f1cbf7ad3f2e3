/* tests/lib/mutate.h - protobuf messages of a peer that is broken or hostile.
 *
 * Purpose    Changes one thing in a packed message, at any depth: a field is gone, comes twice, gets another number or an extreme
 *            value; bytes are cut, doubled or flipped. Lengths around it are kept right, so that most of what comes out is
 *            still a message and reaches the checks behind the unpacking.
 * Ownership  The caller's memory.
 * Threading  Pure: the same seed gives the same bytes.
 */
#ifndef SLUICE_TESTS_LIB_MUTATE_H
#define SLUICE_TESTS_LIB_MUTATE_H

#include <stddef.h>
#include <stdint.h>

enum { MUTATE_MAX = 1 << 16 }; /* bytes of a message, before and after */

/* Length of the changed message in out[MUTATE_MAX]; data has at most MUTATE_MAX / 4 bytes. */
size_t mutate_message(uint64_t seed, const uint8_t *data, size_t len, uint8_t *out);

#endif
