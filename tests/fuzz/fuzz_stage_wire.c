/* Bytes from a stage or a coordinator: the first says the direction, and from 254 on that no plan and no result is left to fill.
 * What is refused is refused in words; what is taken passes its checks and keeps its bounds, and packing it again gives a message
 * that unpacks to the same. The seeds are made by make_wire_seeds.py, but for the older ones. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/check.h"
#include "rpc/grpc/stage_api.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static int said_why(const struct error *err)
{
    return err->status == STATUS_PROTOCOL && err->message[0];
}

static void check_from(const struct from_stage *m)
{
    switch (m->kind) {
    case FROM_STAGE_LOADED:
        CHECK(isfinite(m->loaded.attention_ns) && m->loaded.attention_ns >= 0);
        break;
    case FROM_STAGE_RESULT:
        CHECK(m->result->n_runs <= m->result->max_runs && (m->result->status == STATUS_OK || m->result->n_runs == 0));
        CHECK(m->result->status == status_from_int(m->result->status) && memchr(m->result->message, 0, sizeof m->result->message));
        for (uint32_t i = 0; i < m->result->n_runs; i++) {
            const struct result_run *run = &m->result->runs[i];
            CHECK(run->seq && run->id >= -1 && run->n_top <= (run->has_logprob ? MAX_TOP_LOGPROBS : 0));
        }
        break;
    case FROM_STAGE_TIMINGS:
        CHECK(m->timings.n <= MAX_TIMINGS);
        break;
    case FROM_STAGE_FAILED:
        CHECK(m->failed.status == status_from_int(m->failed.status) && memchr(m->failed.message, 0, sizeof m->failed.message));
        break;
    case FROM_STAGE_HELLO:
        CHECK(memchr(m->hello.host, 0, sizeof m->hello.host) && memchr(m->hello.addresses.tcp, 0, sizeof m->hello.addresses.tcp));
        break;
    default:
        CHECK(m->kind == FROM_STAGE_ACK || m->kind == FROM_STAGE_READY || m->kind == FROM_STAGE_HEARTBEAT);
    }
}

static void try_to(const uint8_t *data, size_t len, int room)
{
    static struct plan *p, *q;
    struct to_stage m, again;
    struct error err = {0};
    uint8_t *packed, *twice;
    size_t n, n_twice;
    if (!p && (plan_create(64, 64, 1024, &p) || plan_create(64, 64, 1024, &q)))
        abort();
    if (stage_wire_unpack_to_stage(data, len, room ? p : NULL, &m, &err) != STATUS_OK) {
        CHECK(said_why(&err));
        return;
    }
    CHECK(m.kind != TO_STAGE_PLAN || (m.plan == p && plan_check(p, &err) == STATUS_OK));
    CHECK(stage_wire_pack_to_stage(&m, &packed, &n) == STATUS_OK);
    CHECK(stage_wire_unpack_to_stage(packed, n, q, &again, &err) == STATUS_OK);
    CHECK(again.kind == m.kind);
    CHECK(stage_wire_pack_to_stage(&again, &twice, &n_twice) == STATUS_OK);
    CHECK(n == n_twice && memcmp(packed, twice, n) == 0);
    free(packed);
    free(twice);
}

static void try_from(const uint8_t *data, size_t len, int room)
{
    static struct result *r, *s;
    struct from_stage m, again;
    struct error err = {0};
    uint8_t *packed, *twice;
    size_t n, n_twice;
    if (!r && (result_create(64, &r) || result_create(64, &s)))
        abort();
    if (stage_wire_unpack_from_stage(data, len, room ? r : NULL, &m, &err) != STATUS_OK) {
        CHECK(said_why(&err));
        return;
    }
    CHECK(m.kind != FROM_STAGE_RESULT || m.result == r);
    check_from(&m);
    CHECK(stage_wire_pack_from_stage(&m, &packed, &n) == STATUS_OK);
    CHECK(stage_wire_unpack_from_stage(packed, n, s, &again, &err) == STATUS_OK);
    CHECK(again.kind == m.kind);
    CHECK(stage_wire_pack_from_stage(&again, &twice, &n_twice) == STATUS_OK);
    CHECK(n == n_twice && memcmp(packed, twice, n) == 0);
    free(packed);
    free(twice);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    if (len == 0)
        return 0;
    if (data[0] & 1)
        try_to(data + 1, len - 1, data[0] < 254);
    else
        try_from(data + 1, len - 1, data[0] < 254);
    return 0;
}
