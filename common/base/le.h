/* common/base/le.h - numbers as bytes on the wire, the lowest first.
 *
 * Purpose    What fixed layouts (frames, handshakes) are written and read with, on any machine.
 * Threading  Pure.
 * Errors     None: the caller knows that there are so many bytes, at most eight.
 */
#ifndef SLUICE_COMMON_BASE_LE_H
#define SLUICE_COMMON_BASE_LE_H

#include <stdint.h>

static inline void le_put(uint8_t *p, uint64_t v, int bytes)
{
    for (int i = 0; i < bytes; i++)
        p[i] = (uint8_t)(v >> 8 * i);
}

static inline uint64_t le_get(const uint8_t *p, int bytes)
{
    uint64_t v = 0;
    for (int i = 0; i < bytes; i++)
        v |= (uint64_t)p[i] << 8 * i;
    return v;
}

#endif
