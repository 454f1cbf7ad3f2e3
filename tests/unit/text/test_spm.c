#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/rand.h"
#include "common/text/detokenizer.h"
#include "made.h"
#include "vectors.h"

enum { MAX_TOKENS = 400 };

/* A vocabulary of this kind; keys that a test wants otherwise are put by it. */
struct recipe {
    uint32_t n;
    struct text tokens[MAX_TOKENS];
    int32_t kinds[MAX_TOKENS];
    float scores[MAX_TOKENS];
    int prefix;                 /* add_space_prefix: 0 false, 1 true, -1: no key */
    int no_scores, n_scores_off;
    int unknown, bos, add_bos;  /* -1: no key */
};

static void put(const struct recipe *r, struct vocabulary_maker *m)
{
    vocabulary_maker_init(m);
    vocabulary_maker_text(m, "tokenizer.ggml.model", "llama");
    vocabulary_maker_texts(m, "tokenizer.ggml.tokens", r->tokens, r->n);
    vocabulary_maker_ints(m, "tokenizer.ggml.token_type", r->kinds, r->n);
    if (!r->no_scores)
        vocabulary_maker_floats(m, "tokenizer.ggml.scores", r->scores, r->n + (uint64_t)r->n_scores_off);
    if (r->prefix >= 0)
        vocabulary_maker_bool(m, "tokenizer.ggml.add_space_prefix", r->prefix);
    if (r->unknown >= 0)
        vocabulary_maker_u32(m, "tokenizer.ggml.unknown_token_id", (uint32_t)r->unknown);
    if (r->bos >= 0)
        vocabulary_maker_u32(m, "tokenizer.ggml.bos_token_id", (uint32_t)r->bos);
    if (r->add_bos >= 0)
        vocabulary_maker_bool(m, "tokenizer.ggml.add_bos_token", r->add_bos);
}

static struct made must_make(const struct recipe *r)
{
    struct made m;
    put(r, &m.maker);
    made_must_open(&m);
    return m;
}

static void refused_with(const struct recipe *r, const char *word, const char *word2)
{
    struct made m;
    put(r, &m.maker);
    made_must_be_refused(&m, word, word2);
}

static void add(struct recipe *r, const char *token, int32_t kind, float score)
{
    assert_true(r->n < MAX_TOKENS);
    r->tokens[r->n] = (struct text){token, strlen(token)};
    r->kinds[r->n] = kind;
    r->scores[r->n++] = score;
}

/* <unk>, <s>, </s>, and <0x00> to <0xFF> as 3 to 258 if asked. */
static struct recipe start(int with_bytes)
{
    static char names[256][8];
    struct recipe r = {.unknown = -1, .bos = -1, .add_bos = -1};
    add(&r, "<unk>", 2, 0);
    add(&r, "<s>", 3, 0);
    add(&r, "</s>", 3, 0);
    for (int b = 0; with_bytes && b < 256; b++) {
        snprintf(names[b], sizeof names[b], "<0x%02X>", b);
        add(&r, names[b], 6, 0);
    }
    return r;
}

static void ids_are(const struct tokenizer *t, const char *text, unsigned flags, const uint32_t *want, size_t n_want)
{
    size_t n;
    uint32_t *ids = encode(t, text, strlen(text), flags, &n);
    int same = n == n_want;
    for (size_t i = 0; same && i < n; i++)
        same = ids[i] == want[i];
    for (size_t i = 0; !same && i < n; i++)
        print_message("%u ", ids[i]);
    if (!same)
        fail_msg("are the ids of \"%s\"", text);
    free(ids);
}
#define IDS(...) (const uint32_t[]){__VA_ARGS__}, sizeof((const uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t)

/* --- the outside reference --- */

static void one_case(const struct tokenizer *t, json_t *vocabulary, json_t *c)
{
    json_t *text = json_object_get(c, "text"), *want = json_object_get(c, "ids");
    size_t n;
    uint32_t *ids = encode(t, json_string_value(text), json_string_length(text), 0, &n);
    json_t *got = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(got, json_integer(ids[i]));
    if (!json_equal(got, want)) {
        char *a = json_dumps(c, 0), *b = json_dumps(got, JSON_COMPACT);
        json_object_del(vocabulary, "cases");
        fail_msg("%s\ngives %s, of %s", a, b, json_dumps(vocabulary, JSON_COMPACT));
    }
    json_decref(got);
    free(ids);
}

static void one_vocabulary(json_t *v, void *context)
{
    struct recipe r = start(json_integer_value(json_object_get(v, "n_bytes")) > 0);
    json_t *tokens = json_object_get(v, "tokens"), *c;
    size_t i;
    r.prefix = json_is_true(json_object_get(v, "add_space_prefix"));
    for (i = 0; i < json_array_size(tokens); i++)
        add(&r, json_string_value(json_array_get(tokens, i)),
            (int32_t)json_integer_value(json_array_get(json_object_get(v, "kinds"), i)),
            (float)json_number_value(json_array_get(json_object_get(v, "scores"), i)));
    struct made m = must_make(&r);
    json_array_foreach(json_object_get(v, "cases"), i, c) {
        one_case(m.t, v, c);
        ++*(int *)context;
    }
    unmake(&m);
}

static void ids_of_small_vocabularies_are_those_of_sentencepiece(void **state)
{
    (void)state;
    int n_cases = 0;
    assert_int_equal(vectors_each_line("tokenizer/spm-small.jsonl", one_vocabulary, &n_cases), 36);
    assert_int_equal(n_cases, 36 * 62);
}

/* --- keys --- */

static void what_does_not_fit_is_refused_and_says_so(void **state)
{
    (void)state;
    struct recipe r = start(1);
    r.no_scores = 1;
    refused_with(&r, "tokenizer.ggml.scores", "absent");
    r.no_scores = 0;
    r.n_scores_off = -1;
    refused_with(&r, "258", "259");
    r.n_scores_off = 1;
    refused_with(&r, "260", "259");
    r.n_scores_off = 0;
    r.scores[5] = NAN;
    refused_with(&r, "scores[5]", "not a number");
    r = start(1);
    r.unknown = 259;
    refused_with(&r, "unknown_token_id is 259", "259 tokens");
    r = start(0);
    refused_with(&r, "no token", "text");
    char name[1026];
    memset(name, 'n', sizeof name);
    name[1025] = 0;
    r = start(1);
    add(&r, name, 1, 0);
    refused_with(&r, "tokens[259] has 1025 bytes", "1024");
    name[1024] = 0;
    r.tokens[259].len = 1024;
    struct made m = must_make(&r);
    unmake(&m);
}

/* FC-57 */
static void byte_tokens_with_another_text_are_refused_with_their_index(void **state)
{
    (void)state;
    static const char *const bad[] = {"<0x-1>", "<0xZZ>", "<0x100>", "<0x>", "A"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct recipe r = start(1);
        add(&r, bad[i], 6, 0);
        refused_with(&r, "tokenizer.ggml.tokens[259]", bad[i]);
    }
}

static void of_equal_tokens_the_lowest_id_encodes(void **state)
{
    (void)state;
    struct recipe r = start(1);
    r.prefix = 0;
    add(&r, "<0x7A>", 6, 0);
    add(&r, "a", 1, 0);
    add(&r, "a", 1, 5);
    add(&r, "b", 5, 0); /* of an unused and a normal one the normal one */
    add(&r, "b", 1, 0);
    struct made m = must_make(&r);
    ids_are(m.t, "abz", 0, IDS(260, 263, 3 + 'z'));
    unmake(&m);
}

static void bos_and_eos_are_one_and_two_unless_the_file_says_otherwise(void **state)
{
    (void)state;
    struct recipe r = start(1);
    r.prefix = 0;
    add(&r, "a", 1, 0);
    unsigned both = TOKENIZE_ADD_SPECIAL | TOKENIZE_PARSE_SPECIAL;
    struct made m = must_make(&r);
    assert_int_equal(tokenizer_bos(m.t), 1);
    assert_int_equal(tokenizer_eos(m.t), 2);
    assert_true(tokenizer_is_end(m.t, 2));
    assert_false(tokenizer_is_end(m.t, 1));
    ids_are(m.t, "a", both, IDS(1, 259));
    ids_are(m.t, "<s>a</s>", both, IDS(1, 259, 2));
    ids_are(m.t, "a", TOKENIZE_PARSE_SPECIAL, IDS(259));
    unmake(&m);
    r.add_bos = 0;
    m = must_make(&r);
    ids_are(m.t, "a", both, IDS(259));
    unmake(&m);
    r.add_bos = -1;
    r.bos = 2;
    m = must_make(&r);
    ids_are(m.t, "a", both, IDS(2, 259));
    unmake(&m);
    r.bos = -1;
    r.kinds[1] = 1; /* no control token: no BOS by default */
    m = must_make(&r);
    assert_int_equal(tokenizer_bos(m.t), -1);
    ids_are(m.t, "a", both, IDS(259));
    unmake(&m);
}

/* --- spaces, special tokens, characters without a token --- */

static struct recipe with_spaces(int prefix)
{
    struct recipe r = start(1);
    r.prefix = prefix;
    add(&r, "\xe2\x96\x81", 1, -9);  /* 259 */
    add(&r, "\xe2\x96\x81" "a", 1, -1); /* 260 */
    add(&r, "a", 1, -9);             /* 261 */
    add(&r, "  ", 4, 0);             /* 262, as GGUFs hold it */
    add(&r, "\xe2\x96\x81<u>", 4, 0); /* 263 */
    add(&r, "<u>", 4, 0);            /* 264 */
    return r;
}

static void a_space_is_put_in_front_where_the_file_wants_it_and_taken_away_again(void **state)
{
    (void)state;
    static const char *const texts[] = {"a", " a", "  a", "a a", "", " ", "<u>a", "a<u> a", "<s>a", "<s> a</s>", "a  <u>", "\n a"};
    for (int prefix = -1; prefix < 2; prefix++) {
        struct recipe r = with_spaces(prefix);
        struct made m = must_make(&r);
        if (prefix)
            ids_are(m.t, "a<u>a", 0, IDS(260, 264, 260));
        else
            ids_are(m.t, "a<u>a", 0, IDS(261, 264, 261));
        ids_are(m.t, "", 0, NULL, 0);
        for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
            size_t n, len;
            uint32_t *ids = encode(m.t, texts[i], strlen(texts[i]), TOKENIZE_PARSE_SPECIAL, &n);
            char *back = decode(m.t, ids, n, 1, &len);
            assert_string_equal(back, texts[i]);
            free(ids);
            free(back);
        }
        unmake(&m);
    }
}

/* What a model answers keeps the space that it said. */
static void an_answer_keeps_its_first_space(void **state)
{
    (void)state;
    struct recipe r = with_spaces(1);
    struct made m = must_make(&r);
    struct detokenizer d;
    struct buf out;
    buf_init(&out, 64);
    detokenizer_init(&d, m.t, 0);
    assert_int_equal(detokenizer_push(&d, 260, &out), STATUS_OK);
    assert_int_equal(detokenizer_push(&d, 261, &out), STATUS_OK);
    assert_int_equal(detokenizer_finish(&d, &out), STATUS_OK);
    assert_int_equal(out.len, 3);
    assert_memory_equal(out.data, " aa", 3);
    buf_fini(&out);
    unmake(&m);
}

static void user_defined_tokens_match_spaces_and_the_literal_character_is_a_space(void **state)
{
    (void)state;
    struct recipe r = with_spaces(0);
    struct made m = must_make(&r);
    ids_are(m.t, "   a", 0, IDS(262, 260));
    ids_are(m.t, "a <u>", 0, IDS(261, 263));
    ids_are(m.t, "\xe2\x96\x81\xe2\x96\x81" "a", 0, IDS(259, 260));
    assert_int_equal(tokenizer_piece(m.t, 263, 0).len, 4);
    assert_memory_equal(tokenizer_piece(m.t, 263, 0).data, " <u>", 4);
    assert_memory_equal(tokenizer_piece(m.t, 260, 0).data, " a", 2);
    unmake(&m);
}

static void control_tokens_come_only_with_parse_special_and_never_behind_a_mark(void **state)
{
    (void)state;
    struct recipe r = with_spaces(0);
    struct made m = must_make(&r);
    ids_are(m.t, "a</s>", TOKENIZE_PARSE_SPECIAL, IDS(261, 2));
    ids_are(m.t, "a</s>", 0, IDS(261, 3 + '<', 3 + '/', 3 + 's', 3 + '>'));
    ids_are(m.t, "a" TOKENIZER_MARK "</s>", TOKENIZE_PARSE_SPECIAL, IDS(261, 3 + '<', 3 + '/', 3 + 's', 3 + '>'));
    assert_int_equal(tokenizer_n_control(m.t), 3);
    assert_int_equal(tokenizer_piece(m.t, 2, 0).len, 0);
    assert_int_equal(tokenizer_piece(m.t, 2, 1).len, 4);
    unmake(&m);
}

static void characters_without_a_token_become_bytes_or_one_unknown_token(void **state)
{
    (void)state;
    struct recipe r = with_spaces(0);
    struct made m = must_make(&r);
    ids_are(m.t, "\xc3\xa9" "a", 0, IDS(3 + 0xc3, 3 + 0xa9, 261));
    unmake(&m);
    r = start(0);
    add(&r, "a", 1, 0); /* 3 */
    add(&r, "<0xC3>", 6, 0);
    r.prefix = 0;
    m = must_make(&r);
    ids_are(m.t, "\xc3\xa9zz" "a\xc3\xa9", 0, IDS(0, 3, 0));
    unmake(&m);
    r.kinds[0] = 3; /* no unknown token, no key: lost */
    m = must_make(&r);
    ids_are(m.t, "\xc3\xa9zz" "a\xc3\xa9", 0, IDS(3));
    unmake(&m);
    r.unknown = 2;
    m = must_make(&r);
    ids_are(m.t, "z", 0, IDS(2));
    unmake(&m);
}

static void an_unused_character_is_said_in_bytes(void **state)
{
    (void)state;
    struct recipe r = with_spaces(0);
    add(&r, "q", 5, 0);
    struct made m = must_make(&r);
    ids_are(m.t, "q", 0, IDS(3 + 'q'));
    unmake(&m);
}

/* --- time --- */

static double seconds_for(const struct tokenizer *t, const char *unit, size_t len, enum status want)
{
    size_t n_unit = strlen(unit), room = tokenizer_max_ids(t, len), n;
    char *text = malloc(len);
    uint32_t *ids = malloc(room * sizeof *ids);
    struct error err = {0};
    for (size_t i = 0; i < len; i++)
        text[i] = unit[i % n_unit];
    double start_s = cpu_seconds();
    enum status s = tokenizer_encode(t, text, len - len % n_unit, 0, INT64_MAX, ids, room, &n, &err);
    double seconds = cpu_seconds() - start_s;
    if (s != want)
        fail_msg("%zu of %s give %d: %s", len, unit, s, err.message);
    free(text);
    free(ids);
    return seconds;
}

/* Vocabularies that make merging as hard as they can: every run of "a" is a token, with scores that want the shortest first,
 * the longest first, all alike, or in disorder. */
static struct recipe hostile(int order)
{
    static char run[257];
    struct recipe r = start(1);
    memset(run, 'a', sizeof run - 1);
    r.prefix = 0;
    for (uint32_t n = 1; n <= 128; n++) {
        float scores[] = {-(float)n, (float)n, 0, (float)(rand_at(5, n) % 64)};
        add(&r, run + 256 - n, 1, scores[order]);
    }
    return r;
}

static void hostile_vocabularies_take_time_in_proportion(void **state)
{
    (void)state;
    static const char *const units[] = {"a", "aaaaaaab", "aa\xc3\xa9"};
    for (int order = 0; order < 4; order++) {
        struct recipe r = hostile(order);
        struct made m = must_make(&r);
        for (size_t i = 0; i < ARRAY_LEN(units); i++) {
            double half = INFINITY, whole = INFINITY;
            for (int k = 0; k < 3; k++) {
                half = fmin(half, seconds_for(m.t, units[i], 24 << 10, STATUS_OK));
                whole = fmin(whole, seconds_for(m.t, units[i], 48 << 10, STATUS_OK));
            }
            if (whole > 2.5 * half + 0.01 * SLOWER)
                fail_msg("order %d, \"%s\": %.3f s, then %.3f s", order, units[i], half, whole);
        }
        unmake(&m);
    }
}

static void a_run_over_the_bound_is_refused_and_text_with_places_to_cut_is_not(void **state)
{
    (void)state;
    struct recipe r = hostile(0);
    struct made m = must_make(&r);
    seconds_for(m.t, "a", (2 << 20) + 1, STATUS_BAD_REQUEST);
    seconds_for(m.t, "ab", 3 << 20, STATUS_OK); /* no token reaches across a "b" */
    unmake(&m);
}

static void a_passed_deadline_ends_the_work_within_milliseconds(void **state)
{
    (void)state;
    struct recipe r = hostile(1);
    struct made m = must_make(&r);
    size_t len = 1 << 20, room = tokenizer_max_ids(m.t, len), n;
    char *text = malloc(len);
    uint32_t *ids = malloc(room * sizeof *ids);
    memset(text, 'a', len);
    for (int spaced = 0; spaced < 2; spaced++) {
        for (size_t i = 0; spaced && i < len; i += 3)
            text[i] = 'b';
        /* Through every part of the work: reading, ranking, merging, giving. */
        for (int ms = 1; ms < 256; ms *= 4) {
            double start_s = cpu_seconds();
            enum status s = tokenizer_encode(m.t, text, len, 0, clock_now_ns() + ms * NS_PER_MS, ids, room, &n, NULL);
            assert_true(s == STATUS_TIMEOUT || (s == STATUS_OK && ms > 16));
            assert_true(cpu_seconds() - start_s < ms / 1000.0 + 0.05 * SLOWER);
        }
    }
    free(text);
    free(ids);
    unmake(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_of_small_vocabularies_are_those_of_sentencepiece),
        cmocka_unit_test(what_does_not_fit_is_refused_and_says_so),
        cmocka_unit_test(byte_tokens_with_another_text_are_refused_with_their_index),
        cmocka_unit_test(of_equal_tokens_the_lowest_id_encodes),
        cmocka_unit_test(bos_and_eos_are_one_and_two_unless_the_file_says_otherwise),
        cmocka_unit_test(a_space_is_put_in_front_where_the_file_wants_it_and_taken_away_again),
        cmocka_unit_test(an_answer_keeps_its_first_space),
        cmocka_unit_test(user_defined_tokens_match_spaces_and_the_literal_character_is_a_space),
        cmocka_unit_test(control_tokens_come_only_with_parse_special_and_never_behind_a_mark),
        cmocka_unit_test(characters_without_a_token_become_bytes_or_one_unknown_token),
        cmocka_unit_test(an_unused_character_is_said_in_bytes),
        cmocka_unit_test(hostile_vocabularies_take_time_in_proportion),
        cmocka_unit_test(a_run_over_the_bound_is_refused_and_text_with_places_to_cut_is_not),
        cmocka_unit_test(a_passed_deadline_ends_the_work_within_milliseconds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
