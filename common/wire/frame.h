/* common/wire/frame.h - the 64-byte header in front of activations and of sampled ids.
 *
 * Purpose    Encoding, decoding and checking of what crosses a link between stages (wire.md, "Data frame").
 * Ownership  Plain data.
 * Threading  Pure.
 * Errors     STATUS_PROTOCOL with both values; STATUS_STALE for another session or epoch.
 *
 *   offset  0 magic u32 "SLUI"   4 version u16   6 flags u16   8 session u64  16 epoch u64  24 tick u64
 *          32 from u16  34 to u16  36 n_rows u32  40 width u32  44 dtype u16  46 n_sections u16  48 payload_bytes u64
 *          56 crc32c of bytes 0..55 u32  60 reserved u32 (0).  All little-endian.
 *   payload, FRAME_ROWS: f32 [n_rows][width], then u32 positions [n_rows].
 *            FRAME_FEEDBACK: n_rows records of 24 bytes {seq u64, next_index u32, n_accepted u32, id i32, 0 u32}.
 */
#ifndef SLUICE_COMMON_WIRE_FRAME_H
#define SLUICE_COMMON_WIRE_FRAME_H

#include <stdint.h>

#include "common/base/error.h"

enum { FRAME_HEADER_BYTES = 64, FEEDBACK_RECORD_BYTES = 24 };
enum frame_flags { FRAME_ROWS = 1, FRAME_FEEDBACK = 2 };
enum frame_dtype { FRAME_F32 = 0 };

struct frame_header {
    uint64_t session, epoch, tick, payload_bytes;
    uint32_t n_rows, width;
    uint16_t flags, from, to, dtype, n_sections;
};

struct feedback_record {
    uint64_t seq;
    uint32_t next_index, n_accepted;
    int32_t id;
};

void frame_encode(const struct frame_header *h, uint8_t out[FRAME_HEADER_BYTES]);
/* Magic, version, crc and reserved bits. */
enum status frame_decode(const uint8_t in[FRAME_HEADER_BYTES], struct frame_header *out, struct error *err);
/* Every field of got equals want (built from the plan); session or epoch: STATUS_STALE. */
enum status frame_expect(const struct frame_header *got, const struct frame_header *want, struct error *err);
void feedback_encode(const struct feedback_record *r, uint8_t out[FEEDBACK_RECORD_BYTES]);
void feedback_decode(const uint8_t in[FEEDBACK_RECORD_BYTES], struct feedback_record *out);
uint32_t crc32c(uint32_t crc, const void *data, uint64_t len);

#endif
