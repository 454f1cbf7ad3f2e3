#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cases.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/rand.h"
#include "common/text/detokenizer.h"
#include "common/base/utf8.h"
#include "vectors.h"

/* The reference puts BOS before a text that starts with it; Sluice never doubles it (FC-60). */
static void drop_doubled_bos(const struct tokenizer *t, json_t *ids)
{
    int64_t bos = tokenizer_bos(t);
    if (bos >= 0 && json_array_size(ids) > 1 && json_integer_value(json_array_get(ids, 0)) == bos &&
        json_integer_value(json_array_get(ids, 1)) == bos)
        json_array_remove(ids, 0);
}

static void encode_case(json_t *line, void *context)
{
    const struct tokenizer *t = context;
    json_t *text = json_object_get(line, "text"), *want = json_object_get(line, "ids");
    if (json_is_true(json_object_get(line, "add_special")))
        drop_doubled_bos(t, want);
    unsigned flags = (json_is_true(json_object_get(line, "add_special")) ? TOKENIZE_ADD_SPECIAL : 0) |
                     (json_is_true(json_object_get(line, "parse_special")) ? TOKENIZE_PARSE_SPECIAL : 0);
    size_t n;
    uint32_t *ids = encode(t, json_string_value(text), json_string_length(text), flags, &n);
    int same = n == json_array_size(want);
    for (size_t i = 0; same && i < n; i++)
        same = ids[i] == json_integer_value(json_array_get(want, i));
    if (!same) {
        char *shown = json_dumps(line, JSON_COMPACT);
        print_message("got:");
        for (size_t i = 0; i < n; i++)
            print_message(" %u", ids[i]);
        fail_msg("\nwant %s", shown);
    }
    free(ids);
}

int cases_encode(const struct tokenizer *t, const char *file)
{
    return vectors_each_line(file, encode_case, (void *)(uintptr_t)t);
}

static size_t from_hex(const char *hex, unsigned char *out)
{
    size_t n = strlen(hex) / 2;
    for (size_t i = 0; i < n; i++) {
        unsigned byte;
        assert_int_equal(sscanf(hex + 2 * i, "%2x", &byte), 1);
        out[i] = (unsigned char)byte;
    }
    return n;
}

/* Streams ids with a buffer that is emptied after each token: what a client sees. Every piece must be whole UTF-8. */
static void stream_equals(const struct tokenizer *t, const uint32_t *ids, size_t n, int special)
{
    size_t len;
    char *whole = decode(t, ids, n, special, &len);
    struct detokenizer d;
    struct buf piece, sum;
    buf_init(&piece, 1 << 20);
    buf_init(&sum, 1 << 20);
    detokenizer_init_text(&d, t, special);
    for (size_t i = 0; i <= n; i++) {
        buf_clear(&piece);
        if (i < n)
            assert_int_equal(detokenizer_push(&d, ids[i], &piece), STATUS_OK);
        else
            assert_int_equal(detokenizer_finish(&d, &piece), STATUS_OK);
        assert_int_equal(utf8_valid_len(piece.data, piece.len), piece.len);
        buf_append(&sum, piece.data, piece.len);
    }
    assert_int_equal(sum.len, len);
    assert_memory_equal(sum.data, whole, len);
    buf_fini(&piece);
    buf_fini(&sum);
    free(whole);
}

/* A stream that ends at every place is a sound prefix: only its last character may differ from the whole. */
static void every_prefix_is_sound(const struct tokenizer *t, const uint32_t *ids, size_t n, int special)
{
    size_t len;
    char *whole = decode(t, ids, n, special, &len);
    for (size_t i = 0; i <= n; i++) {
        size_t part_len;
        char *part = decode(t, ids, i, special, &part_len);
        size_t same = part_len;
        assert_int_equal(utf8_valid_len(part, part_len), part_len);
        if (same >= 3 && memcmp(part + same - 3, "\xef\xbf\xbd", 3) == 0)
            same -= 3;
        assert_true(same <= len);
        assert_memory_equal(part, whole, same);
        free(part);
    }
    free(whole);
}

static void decode_case(json_t *line, void *context)
{
    const struct tokenizer *t = context;
    json_t *ids = json_object_get(line, "ids"), *pieces = json_object_get(line, "pieces");
    int special = json_is_true(json_object_get(line, "special"));
    size_t n = json_array_size(ids);
    uint32_t *list = malloc((n + 1) * sizeof *list);
    for (size_t i = 0; i < n; i++) {
        unsigned char want[1024];
        size_t n_want = from_hex(json_string_value(json_array_get(pieces, i)), want);
        list[i] = (uint32_t)json_integer_value(json_array_get(ids, i));
        struct text got = tokenizer_piece(t, list[i], special);
        assert_int_equal(got.len, n_want);
        assert_memory_equal(got.data, want, n_want);
    }
    stream_equals(t, list, n, special);
    every_prefix_is_sound(t, list, n, special);
    free(list);
}

int cases_decode(const struct tokenizer *t, const char *file)
{
    return vectors_each_line(file, decode_case, (void *)(uintptr_t)t);
}

/* Which bytes the vocabulary has tokens for. */
static void known_bytes(const struct tokenizer *t, unsigned char known[256])
{
    memset(known, 0, 256);
    for (uint32_t id = 0; id < tokenizer_n_vocab(t); id++) {
        struct text p = tokenizer_piece(t, id, 0);
        if (p.len == 1)
            known[(unsigned char)p.data[0]] = 1;
    }
}

static int sayable(const unsigned char known[256], const char *c, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!known[(unsigned char)c[i]])
            return 0;
    return 1;
}

static size_t random_character(uint64_t draw, char *out)
{
    static const char *const blanks[] = {" ", "  ", "\t", "\r\n", "\n", "\n\n", " \t ", "   "};
    uint64_t kind = draw % 8, x = draw >> 8;
    if (kind == 0) {
        const char *b = blanks[x % 8];
        memcpy(out, b, strlen(b));
        return strlen(b);
    }
    uint32_t cp = kind < 3 ? (uint32_t)(x % 0x80) : kind < 5 ? (uint32_t)(x % 0x3000) : kind < 7 ? (uint32_t)(x % 0x20000)
                                                                                               : (uint32_t)(x % 0x110000);
    if ((cp >= 0xd800 && cp <= 0xdfff) || cp == 0x10fffd || cp == 0x2581)
        cp = '?';
    return utf8_encode(cp, out);
}

void cases_round_trip(const struct tokenizer *t, int n)
{
    unsigned char known[256];
    known_bytes(t, known);
    for (int i = 0; i < n; i++) {
        char text[512];
        size_t len = 0, n_ids, n_out;
        unsigned n_characters = (unsigned)(rand_at(11, (uint64_t)i) % 48);
        for (unsigned k = 0; k < n_characters; k++) {
            size_t c = random_character(rand_at((uint64_t)i + 1000, k), text + len);
            if (sayable(known, text + len, c))
                len += c;
        }
        uint32_t *ids = encode(t, text, len, 0, &n_ids);
        char *out = decode(t, ids, n_ids, 0, &n_out);
        assert_int_equal(n_out, len);
        assert_memory_equal(out, text, len);
        free(out);
        free(ids);
    }
}
