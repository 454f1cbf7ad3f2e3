/* Bytes of a neighbour: a header, then feedback records. What decodes must encode to the same bytes; what is expected of
 * it must be decided without reading on. */
#include <stdlib.h>
#include <string.h>

#include "common/base/check.h"
#include "common/wire/frame.h"
#include "stage/handshake.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_header(const uint8_t *data)
{
    struct frame_header h;
    struct error err = {0};
    uint8_t bytes[FRAME_HEADER_BYTES];
    enum status s = frame_decode(data, &h, &err);
    if (s != STATUS_OK) {
        CHECK(s == STATUS_PROTOCOL && err.message[0]);
        return;
    }
    frame_encode(&h, bytes);
    CHECK(memcmp(bytes, data, sizeof bytes) == 0);
    CHECK(frame_expect(&h, &h, &err) == STATUS_OK);
    struct frame_header want = h;
    want.epoch++;
    CHECK(frame_expect(&h, &want, &err) == STATUS_STALE);
    want = h;
    want.payload_bytes ^= 1;
    CHECK(frame_expect(&h, &want, &err) == STATUS_PROTOCOL);
}

/* Most random headers fail by their checksum: mend it, so that the rest is reached. */
static void check_mended(const uint8_t *data)
{
    uint8_t bytes[FRAME_HEADER_BYTES];
    memcpy(bytes, data, sizeof bytes);
    memcpy(bytes, "SLUI\1\0", 6);
    uint32_t crc = crc32c(0, bytes, 56);
    for (int i = 0; i < 4; i++)
        bytes[56 + i] = (uint8_t)(crc >> 8 * i);
    memset(bytes + 60, 0, 4);
    struct frame_header h;
    CHECK(frame_decode(bytes, &h, NULL) == STATUS_OK);
    check_header(bytes);
}

static void check_handshake(const uint8_t *data)
{
    struct handshake_edge e;
    struct error err;
    uint8_t again[HANDSHAKE_HELLO_BYTES];
    if (handshake_read_hello(data, &e, &err) != STATUS_OK)
        return;
    CHECK(handshake_hello(&e, again, &err) == STATUS_OK);
    CHECK(memcmp(again, data, 32) == 0); /* the rest is the nonce */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < FRAME_HEADER_BYTES)
        return 0;
    check_header(data);
    check_mended(data);
    check_handshake(data);
    for (data += FRAME_HEADER_BYTES, size -= FRAME_HEADER_BYTES; size >= FEEDBACK_RECORD_BYTES;
         data += FEEDBACK_RECORD_BYTES, size -= FEEDBACK_RECORD_BYTES) {
        struct feedback_record r, s;
        uint8_t bytes[FEEDBACK_RECORD_BYTES];
        feedback_decode(data, &r);
        feedback_encode(&r, bytes);
        feedback_decode(bytes, &s);
        CHECK(r.seq == s.seq && r.next_index == s.next_index && r.n_accepted == s.n_accepted && r.id == s.id);
    }
    return 0;
}
