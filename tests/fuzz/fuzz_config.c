/* tests/fuzz/fuzz_config.c - configuration files: whatever stands in one, a line that cannot be meant stops the start with one
 * line of text, and nothing else happens. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/base/check.h"
#include "common/base/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int fd = -1;
    static char path[64];
    if (fd < 0) {
        fd = memfd_create("config", 0);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    CHECK(ftruncate(fd, 0) == 0 && pwrite(fd, data, size, 0) == (ssize_t)size);
    char *argv[] = {(char *)"program", (char *)"--config", path, NULL};
    const enum program programs[] = {PROGRAM_COORDINATOR, PROGRAM_STAGE, PROGRAM_GATEWAY, PROGRAM_LAUNCH};
    for (size_t i = 0; i < ARRAY_LEN(programs); i++) {
        struct config c;
        struct error err = {0};
        enum config_action action;
        enum status s = config_read(programs[i], 3, argv, &c, &action, &err);
        CHECK(s == STATUS_OK || (s == STATUS_CONFIG && err.message[0]));
        if (s != STATUS_OK)
            continue;
        CHECK(c.slots >= 1 && c.slots <= 4096 && c.decode_share >= 0 && c.decode_share <= 0.9);
        const char *flags[160];
        int n = config_child_flags(&c, PROGRAM_STAGE, flags, 160);
        CHECK(n % 2 == 0 && flags[n] == NULL);
        int64_t v;
        config_threads(c.threads, 1, &v, NULL);
    }
    config_forget();
    return 0;
}
