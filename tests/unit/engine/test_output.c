/* coordinator/output: the text that a client gets does not depend on how its bytes were cut into tokens. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/rand.h"
#include "common/base/utf8.h"
#include "coordinator/output.h"
#include "tests/unit/text/vocabulary_maker.h"

enum { MAX_TEXT = 64, MAX_PIECE = 6, MAX_TOKENS = 1024, MAX_STOP_SET = 4, FIRST_TOKEN = 1 };

static uint64_t seed = 20, draws;

static uint32_t below(uint32_t n)
{
    return (uint32_t)(rand_at(seed, draws++) % n);
}

/* --- a vocabulary that holds every piece of one text ------------------------------------------------------------------------ */

struct bed {
    struct vocabulary_maker maker;
    struct gguf *gguf;
    struct tokenizer *tokenizer;
    struct text pieces[MAX_TOKENS]; /* raw bytes of token FIRST_TOKEN + i */
    uint32_t n_pieces;
};

static uint32_t find_piece(const struct bed *b, const char *bytes, size_t len)
{
    for (uint32_t i = 0; i < b->n_pieces; i++)
        if (b->pieces[i].len == len && memcmp(b->pieces[i].data, bytes, len) == 0)
            return FIRST_TOKEN + i;
    return 0;
}

static void add_piece(struct bed *b, const char *bytes, size_t len)
{
    if (find_piece(b, bytes, len))
        return;
    assert_true(b->n_pieces + FIRST_TOKEN < MAX_TOKENS);
    b->pieces[b->n_pieces++] = (struct text){bytes, len};
}

/* The spelling of raw bytes in a byte-level vocabulary. */
static struct text spell(const struct text symbols[256], struct text raw, char *room)
{
    size_t n = 0;
    for (size_t i = 0; i < raw.len; i++) {
        struct text s = symbols[(unsigned char)raw.data[i]];
        memcpy(room + n, s.data, s.len);
        n += s.len;
    }
    return (struct text){room, n};
}

static void bed_open(struct bed *b, const char *text, size_t len)
{
    static char rooms[MAX_TOKENS][2 * MAX_PIECE + 2];
    struct text symbols[256], spelled[MAX_TOKENS];
    static const char all[] = "<|end|>";
    static char bytes[256];
    memset(b, 0, sizeof *b);
    for (int i = 0; i < 256; i++) {
        bytes[i] = (char)i;
        add_piece(b, &bytes[i], 1);
    }
    for (size_t n = 2; n <= MAX_PIECE; n++)
        for (size_t at = 0; at + n <= len; at++)
            add_piece(b, text + at, n);
    vocabulary_maker_symbols(symbols);
    spelled[0] = (struct text){all, sizeof all - 1};
    for (uint32_t i = 0; i < b->n_pieces; i++)
        spelled[FIRST_TOKEN + i] = spell(symbols, b->pieces[i], rooms[i]);
    int32_t types[MAX_TOKENS] = {3};
    for (uint32_t i = 0; i < b->n_pieces; i++)
        types[FIRST_TOKEN + i] = 1;
    vocabulary_maker_init(&b->maker);
    vocabulary_maker_text(&b->maker, "tokenizer.ggml.model", "gpt2");
    vocabulary_maker_text(&b->maker, "tokenizer.ggml.pre", "gpt-2");
    vocabulary_maker_texts(&b->maker, "tokenizer.ggml.tokens", spelled, b->n_pieces + FIRST_TOKEN);
    vocabulary_maker_ints(&b->maker, "tokenizer.ggml.token_type", types, b->n_pieces + FIRST_TOKEN);
    vocabulary_maker_texts(&b->maker, "tokenizer.ggml.merges", spelled, 0);
    vocabulary_maker_u32(&b->maker, "tokenizer.ggml.eos_token_id", 0);
    size_t size;
    const void *file = vocabulary_maker_bytes(&b->maker, &size);
    struct error err = {0};
    if (gguf_open_memory(file, size, &b->gguf, &err) != STATUS_OK || tokenizer_create(b->gguf, &b->tokenizer, &err) != STATUS_OK)
        fail_msg("vocabulary: %s", err.message);
}

static void bed_close(struct bed *b)
{
    tokenizer_destroy(b->tokenizer);
    gguf_close(b->gguf);
    vocabulary_maker_fini(&b->maker);
}

/* --- the reference: all bytes at once --------------------------------------------------------------------------------------- */

/* Length of the well-formed character at p, or of the longest start of one (*whole = 0), by Unicode's table 3-7. */
static size_t subpart(const unsigned char *p, size_t n, int *whole)
{
    static const unsigned char low[] = {0x80, 0xa0, 0x80, 0x80, 0x90, 0x80, 0x80}, high[] = {0xbf, 0xbf, 0x9f, 0xbf, 0xbf, 0xbf, 0x8f};
    int row, more;
    *whole = 1;
    if (p[0] < 0x80)
        return 1;
    if (p[0] >= 0xc2 && p[0] <= 0xdf)
        row = 0, more = 1;
    else if (p[0] >= 0xe0 && p[0] <= 0xef)
        row = p[0] == 0xe0 ? 1 : p[0] == 0xed ? 2 : 3, more = 2;
    else if (p[0] >= 0xf0 && p[0] <= 0xf4)
        row = p[0] == 0xf0 ? 4 : p[0] == 0xf4 ? 6 : 5, more = 3;
    else
        return *whole = 0, 1;
    for (size_t i = 1; i <= (size_t)more; i++)
        if (i >= n || p[i] < (i == 1 ? low[row] : 0x80) || p[i] > (i == 1 ? high[row] : 0xbf))
            return *whole = 0, i;
    return (size_t)more + 1;
}

static size_t decode(const char *bytes, size_t len, char *out)
{
    size_t n = 0;
    for (size_t at = 0; at < len;) {
        int whole;
        size_t part = subpart((const unsigned char *)bytes + at, len - at, &whole);
        memcpy(out + n, whole ? bytes + at : "\xef\xbf\xbd", whole ? part : 3);
        n += whole ? part : 3;
        at += part;
    }
    return n;
}

/* Length of the text before the stop that is complete first (ties: that begins first); *which 0: none. */
static size_t cut_at_stop(const char *text, size_t len, const struct bytes *stops, uint32_t n_stops, int *which)
{
    *which = 0;
    for (size_t end = 1; end <= len; end++) {
        size_t start = SIZE_MAX;
        for (uint32_t i = 0; i < n_stops; i++)
            if (stops[i].len <= end && memcmp(text + end - stops[i].len, stops[i].data, stops[i].len) == 0 &&
                end - stops[i].len < start) {
                start = end - stops[i].len;
                *which = (int)i + 1;
            }
        if (start == SIZE_MAX)
            continue;
        while (start > 0 && (text[start] & 0xc0) == 0x80) /* never a part of a character */
            start--;
        return start;
    }
    return len;
}

/* --- one answer --------------------------------------------------------------------------------------------------------------- */

struct answer {
    char text[4 * MAX_TEXT];
    size_t len;
    int stopped;
};

/* cuts: bit i set: a token ends behind byte i. */
static void run_answer(const struct bed *b, const char *bytes, size_t len, uint64_t cuts, const struct bytes *stops,
                       uint32_t n_stops, const struct answer *want)
{
    struct output o;
    struct buf emit;
    int stopped = 0;
    size_t longest = 0;
    for (uint32_t i = 0; i < n_stops; i++)
        longest = stops[i].len > longest ? stops[i].len : longest;
    buf_init(&emit, 1 << 20);
    output_init(&o, b->tokenizer, stops, n_stops);
    for (size_t at = 0, end; at < len && !stopped; at = end) {
        for (end = at + 1; end < len && end - at < MAX_PIECE && !(cuts >> (end - 1) & 1); end++)
            ;
        uint32_t id = find_piece(b, bytes + at, end - at);
        assert_true(id != 0);
        assert_int_equal(output_push(&o, id, &emit, &stopped), STATUS_OK);
        assert_int_equal(utf8_valid_len(emit.data ? emit.data : "", emit.len), emit.len);
        assert_true(emit.len <= want->len && memcmp(emit.data ? emit.data : "", want->text, emit.len) == 0);
        assert_true(o.held.len < (longest ? longest : 1) + 3); /* no longer than it must */
    }
    if (!stopped)
        assert_int_equal(output_finish(&o, &emit, &stopped), STATUS_OK);
    assert_int_equal(emit.len, want->len);
    assert_memory_equal(emit.data ? emit.data : "", want->text, want->len);
    assert_int_equal(stopped, want->stopped);
    output_fini(&o);
    buf_fini(&emit);
}

static struct answer reference(const char *bytes, size_t len, const struct bytes *stops, uint32_t n_stops)
{
    struct answer want;
    want.len = decode(bytes, len, want.text);
    want.len = cut_at_stop(want.text, want.len, stops, n_stops, &want.stopped);
    return want;
}

/* --- material ------------------------------------------------------------------------------------------------------------------ */

/* Small alphabets make stops overlap; the others make characters break. */
static size_t random_bytes(char *out, size_t max)
{
    static const char *const parts[] = {"a", "b", "ab", "aab", "X", "\n", "\xc3\xa9", "\xe4\xb8\xad", "\xf0\x9f\x98\x80",
                                        "\xe2\x80\x8d", "\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x91\xa7", "\xff", "\xe4\xb8", "\xf0\x9f",
                                        "\x80", "\xed\xa0\x80", "\xc0\xaf"};
    uint32_t kinds = below(3) == 0 ? 4 : (uint32_t)(sizeof parts / sizeof *parts);
    size_t n = 0;
    for (;;) {
        const char *p = parts[below(kinds)];
        if (n + strlen(p) > max)
            return n;
        memcpy(out + n, p, strlen(p));
        n += strlen(p);
    }
}

/* Half of the stops are taken out of the text, so that they occur; some go beyond its end, so that they nearly do. */
static uint32_t random_stops(const char *text, size_t len, struct bytes *stops, char rooms[MAX_STOP_SET][32])
{
    uint32_t n = below(MAX_STOP_SET + 1);
    for (uint32_t i = 0; i < n; i++) {
        size_t at = below((uint32_t)len), most = len - at < 12 ? len - at : 12, take = 1 + below((uint32_t)most);
        memcpy(rooms[i], text + at, take);
        if (below(3) == 0)
            rooms[i][take++] = "aX\n\xbf"[below(4)];
        stops[i] = (struct bytes){rooms[i], take};
    }
    return n;
}

/* --- tests --------------------------------------------------------------------------------------------------------------------- */

static void output_is_the_same_for_every_cut_of_a_short_text(void **state)
{
    (void)state;
    enum { LEN = 9, ROUNDS = 25, STOP_SETS = 12 };
    for (int round = 0; round < ROUNDS; round++) {
        char bytes[LEN], text[4 * LEN], rooms[MAX_STOP_SET][32];
        size_t len = random_bytes(bytes, LEN), text_len = decode(bytes, len, text);
        if (!len)
            continue;
        struct bed b;
        bed_open(&b, bytes, len);
        for (int set = 0; set < STOP_SETS; set++) {
            struct bytes stops[MAX_STOP_SET];
            uint32_t n_stops = random_stops(text, text_len, stops, rooms);
            struct answer want = reference(bytes, len, stops, n_stops);
            for (uint64_t cuts = 0; cuts < 1u << (len - 1); cuts++)
                run_answer(&b, bytes, len, cuts, stops, n_stops, &want);
        }
        bed_close(&b);
    }
}

static void output_is_the_same_for_random_cuts_of_long_texts(void **state)
{
    (void)state;
    enum { ROUNDS = 30, STOP_SETS = 60, CUTS = 4 };
    for (int round = 0; round < ROUNDS; round++) {
        char bytes[MAX_TEXT], text[4 * MAX_TEXT], rooms[MAX_STOP_SET][32];
        size_t len = random_bytes(bytes, MAX_TEXT), text_len = decode(bytes, len, text);
        struct bed b;
        bed_open(&b, bytes, len);
        for (int set = 0; set < STOP_SETS; set++) {
            struct bytes stops[MAX_STOP_SET];
            uint32_t n_stops = random_stops(text, text_len, stops, rooms);
            struct answer want = reference(bytes, len, stops, n_stops);
            for (int i = 0; i < CUTS; i++)
                run_answer(&b, bytes, len, i ? rand_at(seed, draws++) : UINT64_MAX, stops, n_stops, &want);
        }
        bed_close(&b);
    }
}

static void output_stops_before_the_first_occurrence_of_any_substring(void **state)
{
    (void)state;
    static const char text[] = "The abcab\xc3\xa9 cabc says \xe4\xb8\xad\xe6\x96\x87 and abcd, abcde.";
    enum { LEN = sizeof text - 1, LONGEST = 12 };
    struct bed b;
    bed_open(&b, text, LEN);
    for (size_t at = 0; at < LEN; at++)
        for (size_t n = 1; n <= LONGEST && at + n <= LEN; n++) {
            struct bytes stop = {text + at, n};
            struct answer want = reference(text, LEN, &stop, 1);
            assert_int_equal(want.stopped, 1);
            run_answer(&b, text, LEN, UINT64_MAX, &stop, 1, &want);             /* tokens of 1 byte */
            run_answer(&b, text, LEN, 0x4924924924924924ull, &stop, 1, &want); /* and of 3 */
        }
    bed_close(&b);
}

static void output_gives_held_text_at_the_end(void **state)
{
    (void)state;
    struct bed b;
    bed_open(&b, "xyabc", 5);
    struct bytes stop = {"abcX", 4};
    struct output o;
    struct buf emit;
    int stopped;
    buf_init(&emit, 1 << 10);
    output_init(&o, b.tokenizer, &stop, 1);
    assert_int_equal(output_push(&o, find_piece(&b, "xyab", 4), &emit, &stopped), STATUS_OK);
    assert_int_equal(output_push(&o, find_piece(&b, "c", 1), &emit, &stopped), STATUS_OK);
    assert_string_equal(emit.data, "xy");
    assert_int_equal(output_finish(&o, &emit, &stopped), STATUS_OK);
    assert_int_equal(stopped, 0);
    assert_string_equal(emit.data, "xyabc");
    output_fini(&o);
    buf_fini(&emit);
    bed_close(&b);
}

static void output_cut_inside_a_character_ends_in_one_replacement(void **state)
{
    (void)state;
    static const char emoji[] = "\xf0\x9f\x98\x80";
    struct bed b;
    bed_open(&b, emoji, 4);
    for (size_t len = 1; len <= 3; len++) {
        struct answer want = {.text = "\xef\xbf\xbd", .len = 3};
        run_answer(&b, emoji, len, UINT64_MAX, NULL, 0, &want);
    }
    bed_close(&b);
}

static void output_shows_nothing_of_a_control_token(void **state)
{
    (void)state;
    struct bed b;
    bed_open(&b, "ab", 2);
    struct output o;
    struct buf emit;
    int stopped;
    buf_init(&emit, 1 << 10);
    output_init(&o, b.tokenizer, NULL, 0);
    assert_int_equal(output_push(&o, find_piece(&b, "a", 1), &emit, &stopped), STATUS_OK);
    assert_int_equal(output_push(&o, 0, &emit, &stopped), STATUS_OK);
    assert_int_equal(output_push(&o, find_piece(&b, "b", 1), &emit, &stopped), STATUS_OK);
    assert_string_equal(emit.data, "ab");
    output_fini(&o);
    buf_fini(&emit);
    bed_close(&b);
}

static void output_over_the_emit_bound_is_refused(void **state)
{
    (void)state;
    struct bed b;
    bed_open(&b, "abcdef", 6);
    struct output o;
    struct buf emit;
    int stopped;
    buf_init(&emit, 8);
    output_init(&o, b.tokenizer, NULL, 0);
    uint32_t id = find_piece(&b, "abcdef", 6);
    assert_int_equal(output_push(&o, id, &emit, &stopped), STATUS_OK);
    assert_int_equal(output_push(&o, id, &emit, &stopped), STATUS_OUT_OF_MEMORY);
    output_fini(&o);
    buf_fini(&emit);
    bed_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(output_is_the_same_for_every_cut_of_a_short_text),
        cmocka_unit_test(output_is_the_same_for_random_cuts_of_long_texts),
        cmocka_unit_test(output_stops_before_the_first_occurrence_of_any_substring),
        cmocka_unit_test(output_gives_held_text_at_the_end),
        cmocka_unit_test(output_cut_inside_a_character_ends_in_one_replacement),
        cmocka_unit_test(output_shows_nothing_of_a_control_token),
        cmocka_unit_test(output_over_the_emit_bound_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
