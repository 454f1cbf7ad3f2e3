#include "common/wire/frame.h"

#include <string.h>

#include "common/base/le.h"

enum { MAGIC = 0x49554c53 /* "SLUI" */, VERSION = 1 };

/* Headers are 56 bytes, so a bitwise CRC (polynomial 0x1EDC6F41 reflected) costs a few hundred cycles a frame. */
uint32_t crc32c(uint32_t crc, const void *data, uint64_t len)
{
    const uint8_t *p = data;
    crc = ~crc;
    for (uint64_t i = 0; i < len; i++) {
        crc ^= p[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (0x82f63b78u & (0u - (crc & 1)));
    }
    return ~crc;
}

void frame_encode(const struct frame_header *h, uint8_t out[FRAME_HEADER_BYTES])
{
    memset(out, 0, FRAME_HEADER_BYTES);
    le_put(out, MAGIC, 4);
    le_put(out + 4, VERSION, 2);
    le_put(out + 6, h->flags, 2);
    le_put(out + 8, h->session, 8);
    le_put(out + 16, h->epoch, 8);
    le_put(out + 24, h->tick, 8);
    le_put(out + 32, h->from, 2);
    le_put(out + 34, h->to, 2);
    le_put(out + 36, h->n_rows, 4);
    le_put(out + 40, h->width, 4);
    le_put(out + 44, h->dtype, 2);
    le_put(out + 46, h->n_sections, 2);
    le_put(out + 48, h->payload_bytes, 8);
    le_put(out + 56, crc32c(0, out, 56), 4);
}

enum status frame_decode(const uint8_t in[FRAME_HEADER_BYTES], struct frame_header *out, struct error *err)
{
    uint32_t magic = (uint32_t)le_get(in, 4), version = (uint32_t)le_get(in + 4, 2), crc = (uint32_t)le_get(in + 56, 4);
    if (magic != MAGIC)
        return error_set(err, STATUS_PROTOCOL, "frame magic %08x, expected %08x", magic, MAGIC);
    if (version != VERSION)
        return error_set(err, STATUS_PROTOCOL, "frame version %u, expected %u", version, VERSION);
    if (crc != crc32c(0, in, 56))
        return error_set(err, STATUS_PROTOCOL, "frame checksum %08x, expected %08x", crc, crc32c(0, in, 56));
    if (le_get(in + 60, 4) != 0)
        return error_set(err, STATUS_PROTOCOL, "reserved bits of the frame are set");
    *out = (struct frame_header){
        .flags = (uint16_t)le_get(in + 6, 2),
        .session = le_get(in + 8, 8),
        .epoch = le_get(in + 16, 8),
        .tick = le_get(in + 24, 8),
        .from = (uint16_t)le_get(in + 32, 2),
        .to = (uint16_t)le_get(in + 34, 2),
        .n_rows = (uint32_t)le_get(in + 36, 4),
        .width = (uint32_t)le_get(in + 40, 4),
        .dtype = (uint16_t)le_get(in + 44, 2),
        .n_sections = (uint16_t)le_get(in + 46, 2),
        .payload_bytes = le_get(in + 48, 8),
    };
    return STATUS_OK;
}

enum status frame_expect(const struct frame_header *got, const struct frame_header *want, struct error *err)
{
    if (got->session != want->session || got->epoch != want->epoch)
        return error_set(err, STATUS_STALE, "frame of epoch %llu, this is %llu", (unsigned long long)got->epoch,
                         (unsigned long long)want->epoch);
    const struct {
        const char *name;
        uint64_t got, want;
    } fields[] = {
        {"flags", got->flags, want->flags},       {"tick", got->tick, want->tick},
        {"from", got->from, want->from},          {"to", got->to, want->to},
        {"n_rows", got->n_rows, want->n_rows},    {"width", got->width, want->width},
        {"dtype", got->dtype, want->dtype},       {"n_sections", got->n_sections, want->n_sections},
        {"payload_bytes", got->payload_bytes, want->payload_bytes},
    };
    for (unsigned i = 0; i < sizeof fields / sizeof fields[0]; i++)
        if (fields[i].got != fields[i].want)
            return error_set(err, STATUS_PROTOCOL, "frame %s %llu, the plan says %llu", fields[i].name,
                             (unsigned long long)fields[i].got, (unsigned long long)fields[i].want);
    return STATUS_OK;
}

void feedback_encode(const struct feedback_record *r, uint8_t out[FEEDBACK_RECORD_BYTES])
{
    le_put(out, r->seq, 8);
    le_put(out + 8, r->next_index, 4);
    le_put(out + 12, r->n_accepted, 4);
    le_put(out + 16, (uint32_t)r->id, 4);
    le_put(out + 20, 0, 4);
}

void feedback_decode(const uint8_t in[FEEDBACK_RECORD_BYTES], struct feedback_record *out)
{
    *out = (struct feedback_record){
        .seq = le_get(in, 8),
        .next_index = (uint32_t)le_get(in + 8, 4),
        .n_accepted = (uint32_t)le_get(in + 12, 4),
        .id = (int32_t)(uint32_t)le_get(in + 16, 4),
    };
}
