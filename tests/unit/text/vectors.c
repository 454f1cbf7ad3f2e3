#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "vectors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/text/detokenizer.h"

struct vocabulary vocabulary_open(const char *path)
{
    struct vocabulary v;
    struct error err = {0};
    if (gguf_open(path, &v.gguf, &err) != STATUS_OK)
        fail_msg("%s: %s", path, err.message);
    if (tokenizer_create(v.gguf, &v.tokenizer, &err) != STATUS_OK)
        fail_msg("%s: %s", path, err.message);
    return v;
}

struct vocabulary vocabulary_open_tiny(const char *name)
{
    char path[512];
    snprintf(path, sizeof path, "%s/tiny/%s.gguf", SLUICE_VECTORS, name);
    return vocabulary_open(path);
}

void vocabulary_close(struct vocabulary *v)
{
    tokenizer_destroy(v->tokenizer);
    gguf_close(v->gguf);
}

const char *real_model_path_of(const char *variable)
{
    const char *path = getenv(variable);
    if (!path || !*path) {
        printf("skipped: %s does not name a GGUF\n", variable);
        exit(77);
    }
    return path;
}

const char *real_model_path(void)
{
    return real_model_path_of("SLUICE_MODEL_SMOLLM2");
}

/* jansson has no integers beyond 64 bits: ": 12345678901234567890" is read as the string "@12345678901234567890". */
static char *quote_big_integers(const char *text)
{
    char *out = malloc(2 * strlen(text) + 1), *to = out;
    assert_non_null(out);
    for (const char *p = text; *p;) {
        size_t digits = p > text + 1 && p[-2] == ':' && p[-1] == ' ' ? strspn(p, "0123456789") : 0;
        if (digits < 19) {
            *to++ = *p++;
            continue;
        }
        to += sprintf(to, "\"@%.*s\"", (int)digits, p);
        p += digits;
    }
    *to = 0;
    return out;
}

void unquote_big_integers(char *json)
{
    char *to = json;
    for (const char *p = json; *p;) {
        size_t digits = strncmp(p, "\"@", 2) == 0 ? strspn(p + 2, "0123456789") : 0;
        if (digits < 19) {
            *to++ = *p++;
            continue;
        }
        memmove(to, p + 2, digits);
        to += digits;
        p += digits + 3;
    }
    *to = 0;
}

static char *read_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f)
        fail_msg("%s is missing", path);
    char *text = NULL;
    size_t size = 0;
    ssize_t len = getdelim(&text, &size, 0, f); /* no 0 in a text: all of it */
    assert_true(len > 0);
    fclose(f);
    return text;
}

json_t *vectors_json(const char *name)
{
    char path[512];
    json_error_t e;
    snprintf(path, sizeof path, "%s/%s", SLUICE_VECTORS, name);
    char *text = read_file(path), *quoted = quote_big_integers(text);
    json_t *v = json_loads(quoted, JSON_ALLOW_NUL, &e);
    if (!v)
        fail_msg("%s:%d: %s", path, e.line, e.text);
    free(text);
    free(quoted);
    return v;
}

int vectors_each_line(const char *name, void (*check)(json_t *line, void *context), void *context)
{
    char path[512], *line = NULL;
    size_t size = 0;
    ssize_t len;
    int n = 0;
    snprintf(path, sizeof path, "%s/%s", SLUICE_VECTORS, name);
    FILE *f = fopen(path, "r");
    if (!f)
        fail_msg("%s is missing", path);
    while ((len = getline(&line, &size, f)) > 0) {
        json_error_t e;
        json_t *v = json_loadb(line, (size_t)len, JSON_ALLOW_NUL, &e);
        if (!v)
            fail_msg("%s:%d: %s", path, n + 1, e.text);
        check(v, context);
        json_decref(v);
        n++;
    }
    free(line);
    fclose(f);
    return n;
}

double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

uint32_t *encode(const struct tokenizer *t, const char *text, size_t len, unsigned flags, size_t *n)
{
    struct error err = {0};
    size_t room = tokenizer_max_ids(t, len);
    uint32_t *ids = malloc(room * sizeof *ids);
    assert_non_null(ids);
    if (tokenizer_encode(t, text, len, flags, INT64_MAX, ids, room, n, &err) != STATUS_OK)
        fail_msg("%s", err.message);
    return ids;
}

char *decode(const struct tokenizer *t, const uint32_t *ids, size_t n, int show_special, size_t *len)
{
    struct detokenizer d;
    struct buf out;
    buf_init(&out, SIZE_MAX / 2);
    buf_text(&out, "");
    detokenizer_init_text(&d, t, show_special);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(detokenizer_push(&d, ids[i], &out), STATUS_OK);
    assert_int_equal(detokenizer_finish(&d, &out), STATUS_OK);
    *len = out.len;
    return out.data;
}
