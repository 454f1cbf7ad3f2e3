/* The API keys file. */
#include <stdint.h>
#include <string.h>

#include "common/base/check.h"
#include "rpc/gateway/auth.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct api_keys k;
    struct error err;
    error_clear(&err);
    if (api_keys_parse((const char *)data, size, &k, &err) != STATUS_OK) {
        CHECK(err.message[0]);
        return 0;
    }
    CHECK(k.n > 0);
    for (size_t i = 0; i < k.n; i++) {
        CHECK(k.key[i].name[0] && memchr(k.key[i].name, 0, sizeof k.key[i].name));
        CHECK(i == 0 || strcmp(k.key[i - 1].name, k.key[i].name) < 0);
    }
    api_keys_fini(&k);
    return 0;
}
