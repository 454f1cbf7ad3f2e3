/* tests/fuzz/fuzz_model_report.c - `sluice model` of a file of arbitrary bytes: what it refuses is told line by line, the rest in a table and as
 * JSON, and nothing of the file steers the terminal. The first byte chooses stages, slots and context; the rest is the file. (Templates
 * are left out: they are compiled by a process of their own, and fuzz_chat_template has them.) */
#include <jansson.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/base/check.h"
#include "common/base/log.h"
#include "deploy/cli/model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_plain(const char *text, size_t len, int lines)
{
    CHECK(len > 0 && strlen(text) == len);
    for (const unsigned char *p = (const unsigned char *)text; *p; p++)
        CHECK((*p >= 0x20 && *p != 0x7f && !(*p == 0xc2 && p[1] < 0xa0)) || (lines && *p == '\n'));
}

static void check_table(const struct model_report *r, const struct model_options *o)
{
    char *text = NULL;
    size_t len = 0;
    FILE *f = open_memstream(&text, &len);
    model_report_print(r, o, f);
    fclose(f);
    if (r->gguf)
        check_plain(text, len, 1);
    free(text);
}

static void check_json(const struct model_report *r, const struct model_options *o)
{
    char *text = NULL;
    size_t len = 0;
    FILE *f = open_memstream(&text, &len);
    model_report_json(r, o, f);
    fclose(f);
    json_t *v = json_loadb(text, len, JSON_REJECT_DUPLICATES, NULL);
    CHECK(json_is_object(v));
    CHECK(json_array_size(json_object_get(v, "refused")) == r->n_refusals); /* each of them could be told */
    CHECK(!r->gguf == !json_object_get(v, "tensors"));
    CHECK(json_array_size(json_object_get(v, "stages")) == (r->gguf && !r->n_refusals ? o->stages : 0));
    json_decref(v);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int fd = -1;
    static char path[64];
    static struct model_report r;
    struct error err = {0};
    if (fd < 0) {
        fd = memfd_create("model", MFD_CLOEXEC);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    if (size < 1 || memmem(data, size, "chat_template", 13))
        return 0;
    log_set_levels("error", NULL);
    CHECK(ftruncate(fd, 0) == 0 && pwrite(fd, data + 1, size - 1, 0) == (ssize_t)size - 1);
    const struct model_options o = {.path = path, .stages = 1u + (data[0] & 3), .slots = data[0] & 4 ? 4096 : 2,
                                    .context = data[0] & 8 ? 64 : 0, .kv_block = 16u << (data[0] >> 4 & 3)};
    enum status s = model_report_open(&o, &r, &err);
    if (s == STATUS_OK) {
        CHECK(r.gguf || r.n_refusals);
        for (uint32_t i = 0; i < r.n_refusals; i++)
            check_plain(r.refusals[i], strlen(r.refusals[i]), 0);
        check_table(&r, &o);
        check_json(&r, &o);
    } else { /* more stages than layers, a context that the model has not */
        CHECK(s == STATUS_CONFIG && err.message[0] && r.is_model && !r.n_refusals);
    }
    model_report_close(&r);
    return 0;
}
