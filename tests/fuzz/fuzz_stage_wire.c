/* Bytes from a stage or a coordinator: the first says the direction. What is taken must pass its checks, and packing it
 * again gives a message that unpacks to the same. */
#include <stdlib.h>
#include <string.h>

#include "common/base/check.h"
#include "rpc/grpc/stage_api.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static void try_to(const uint8_t *data, size_t len)
{
    static struct plan *p, *q;
    struct to_stage m, again;
    struct error err;
    uint8_t *packed, *twice;
    size_t n, n_twice;
    if (!p && (plan_create(64, 64, 1024, &p) || plan_create(64, 64, 1024, &q)))
        abort();
    if (stage_wire_unpack_to_stage(data, len, p, &m, &err) != STATUS_OK)
        return;
    CHECK(m.kind != TO_STAGE_PLAN || (m.plan == p && plan_check(p, &err) == STATUS_OK));
    CHECK(stage_wire_pack_to_stage(&m, &packed, &n) == STATUS_OK);
    CHECK(stage_wire_unpack_to_stage(packed, n, q, &again, &err) == STATUS_OK);
    CHECK(again.kind == m.kind);
    CHECK(stage_wire_pack_to_stage(&again, &twice, &n_twice) == STATUS_OK);
    CHECK(n == n_twice && memcmp(packed, twice, n) == 0);
    free(packed);
    free(twice);
}

static void try_from(const uint8_t *data, size_t len)
{
    static struct result *r, *s;
    struct from_stage m, again;
    struct error err;
    uint8_t *packed, *twice;
    size_t n, n_twice;
    if (!r && (result_create(64, &r) || result_create(64, &s)))
        abort();
    if (stage_wire_unpack_from_stage(data, len, r, &m, &err) != STATUS_OK)
        return;
    CHECK(m.kind != FROM_STAGE_RESULT || (m.result == r && r->n_runs <= r->max_runs));
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
        try_to(data + 1, len - 1);
    else
        try_from(data + 1, len - 1);
    return 0;
}
