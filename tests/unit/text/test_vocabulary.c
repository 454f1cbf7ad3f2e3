#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "common/base/check.h"
#include "common/text/detokenizer.h"
#include "made.h"
#include "vectors.h"

/* The 256 symbols, then what a test adds. */
struct recipe {
    const char *model, *pre; /* NULL: gpt2, gpt-2 */
    const char *more[16];
    int32_t more_kinds[16];
    const char *merges[16];
    int32_t bos, eos, eot; /* 0: no key */
    int add_bos, add_eos;  /* 0: no key, 1: true, -1: false */
    int n_kinds_off;       /* added to the number of token types */
    int no_model, no_pre, no_tokens, no_kinds, no_merges;
};

static size_t count(const char *const *list)
{
    size_t n = 0;
    while (n < 16 && list[n])
        n++;
    return n;
}

static void put_arrays(struct vocabulary_maker *m, const struct recipe *r)
{
    struct text tokens[256 + 16], merges[16];
    int32_t kinds[256 + 17];
    size_t n_more = count(r->more), n_merges = count(r->merges);
    vocabulary_maker_symbols(tokens);
    for (size_t i = 0; i < 256; i++)
        kinds[i] = 1;
    for (size_t i = 0; i < n_more; i++) {
        tokens[256 + i] = (struct text){r->more[i], strlen(r->more[i])};
        kinds[256 + i] = r->more_kinds[i];
    }
    for (size_t i = 0; i < n_merges; i++)
        merges[i] = (struct text){r->merges[i], strlen(r->merges[i])};
    kinds[256 + n_more] = 1;
    if (!r->no_tokens)
        vocabulary_maker_texts(m, "tokenizer.ggml.tokens", tokens, 256 + n_more);
    if (!r->no_kinds)
        vocabulary_maker_ints(m, "tokenizer.ggml.token_type", kinds, 256 + n_more + (size_t)r->n_kinds_off);
    if (!r->no_merges)
        vocabulary_maker_texts(m, "tokenizer.ggml.merges", merges, n_merges);
}

static void put_ids(struct vocabulary_maker *m, const struct recipe *r)
{
    vocabulary_maker_i32(m, "tokenizer.ggml.bos_token_id", r->bos ? r->bos : -1); /* some files write -1 for none */
    if (r->eos)
        vocabulary_maker_u32(m, "tokenizer.ggml.eos_token_id", (uint32_t)r->eos);
    if (r->eot)
        vocabulary_maker_u32(m, "tokenizer.ggml.eot_token_id", (uint32_t)r->eot);
    if (r->add_bos)
        vocabulary_maker_bool(m, "tokenizer.ggml.add_bos_token", r->add_bos > 0);
    if (r->add_eos)
        vocabulary_maker_bool(m, "tokenizer.ggml.add_eos_token", r->add_eos > 0);
}

static void put(const struct recipe *r, struct vocabulary_maker *m)
{
    vocabulary_maker_init(m);
    if (!r->no_model)
        vocabulary_maker_text(m, "tokenizer.ggml.model", r->model ? r->model : "gpt2");
    if (!r->no_pre)
        vocabulary_maker_text(m, "tokenizer.ggml.pre", r->pre ? r->pre : "gpt-2");
    put_arrays(m, r);
    put_ids(m, r);
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

/* Ids below 256 are bytes: written as that character; others as {n}. */
static void ids_are(const struct tokenizer *t, const char *text, unsigned flags, const char *want)
{
    size_t n;
    uint32_t *ids = encode(t, text, strlen(text), flags, &n);
    struct buf out;
    buf_init(&out, 1 << 16);
    buf_text(&out, "");
    for (size_t i = 0; i < n; i++)
        ids[i] < 256 ? buf_printf(&out, "%c", (int)ids[i]) : buf_printf(&out, "{%u}", ids[i]);
    assert_string_equal(out.data, want);
    buf_fini(&out);
    free(ids);
}

/* FC-58 */
static void unknown_pre_tokenizers_and_vocabulary_kinds_are_refused_by_name(void **state)
{
    (void)state;
    refused_with(&(struct recipe){.pre = "gpt-5"}, "\"gpt-5\"", "supported: smollm, gpt-2, qwen2, llama-bpe");
    refused_with(&(struct recipe){.pre = ""}, "\"\"", "supported");
    refused_with(&(struct recipe){.pre = "gpt-22"}, "\"gpt-22\"", "supported");
    refused_with(&(struct recipe){.model = "bert"}, "\"bert\"", "supported: gpt2, llama");
    refused_with(&(struct recipe){.model = "llama2"}, "\"llama2\"", "supported: gpt2, llama");
    refused_with(&(struct recipe){.no_model = 1}, "tokenizer.ggml.model", "absent");
}

/* "default" keeps signs apart from the letters behind them, and digits by three. */
static void without_a_pre_tokenizer_the_default_cuts(void **state)
{
    (void)state;
    struct made m = must_make(&(struct recipe){.no_pre = 1, .more = {"12", "123", "1234"}, .more_kinds = {1, 1, 1},
                                               .merges = {"1 2", "12 3", "123 4"}});
    ids_are(m.t, "b=a 1234", 0, "b=a {257}4");
    unmake(&m);
}

/* FC-57 */
static void byte_tokens_with_another_text_are_refused_with_their_index(void **state)
{
    (void)state;
    static const char *const bad[] = {"<0x-1>", "<0xZZ>", "<0x1>", "<0x001>", "0x41", "<0x41", "<0X41>", "<0x4 >", ""};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        refused_with(&(struct recipe){.more = {"ok", bad[i]}, .more_kinds = {1, 6}}, "tokenizer.ggml.tokens[257]", bad[i]);
}

static void arrays_that_do_not_fit_are_refused_with_both_numbers(void **state)
{
    (void)state;
    refused_with(&(struct recipe){.n_kinds_off = 1}, "257", "256");
    refused_with(&(struct recipe){.n_kinds_off = -1}, "255", "256");
    refused_with(&(struct recipe){.no_tokens = 1}, "tokenizer.ggml.tokens", "absent");
    refused_with(&(struct recipe){.no_kinds = 1}, "tokenizer.ggml.token_type", "absent");
    refused_with(&(struct recipe){.no_merges = 1}, "tokenizer.ggml.merges", "absent");
    refused_with(&(struct recipe){.more = {"x1"}, .more_kinds = {7}}, "token_type[256] is 7", "1 to 6");
    refused_with(&(struct recipe){.more = {"x1"}, .more_kinds = {0}}, "token_type[256] is 0", "1 to 6");
    refused_with(&(struct recipe){.eos = 256}, "eos_token_id is 256", "256 tokens");
    refused_with(&(struct recipe){.eot = 1000}, "eot_token_id is 1000", "256 tokens");
}

static void a_special_name_over_the_bound_is_refused(void **state)
{
    (void)state;
    char name[1026];
    memset(name, 'n', sizeof name);
    name[1025] = 0;
    refused_with(&(struct recipe){.more = {name}, .more_kinds = {3}}, "1025 bytes", "1024");
}

static void of_equal_tokens_the_lowest_id_encodes(void **state)
{
    (void)state;
    struct made m = must_make(&(struct recipe){.more = {"ab", "ab", "a"}, .more_kinds = {1, 1, 1}, .merges = {"a b"}});
    ids_are(m.t, "ab a", 0, "{256} a");
    unmake(&m);
}

static void merges_that_name_no_token_change_nothing(void **state)
{
    (void)state;
    struct made m = must_make(&(struct recipe){
        .more = {"bc"}, .more_kinds = {1},
        .merges = {"a b", "", " ", "a", "x ", " y", "q zz", "b c", "a bc", "\xff \xfe", "a b c"}});
    ids_are(m.t, "abc", 0, "a{256}");
    unmake(&m);
}

static void the_lowest_rank_and_then_the_leftmost_pair_is_merged(void **state)
{
    (void)state;
    struct made m = must_make(&(struct recipe){.more = {"bc", "ab", "aa", "aaaa"}, .more_kinds = {1, 1, 1, 1},
                                               .merges = {"b c", "a b", "a a", "aa aa", "a a"}});
    ids_are(m.t, "abc", 0, "a{256}");
    ids_are(m.t, "aaa", 0, "{258}a");
    ids_are(m.t, "aaaaaaa", 0, "{259}{258}a");
    ids_are(m.t, "ab", 0, "{257}");
    unmake(&m);
}

/* Words just below and above the length where the scan gives way to the heap, built so that both must agree. */
static void short_and_long_words_merge_alike(void **state)
{
    (void)state;
    struct made m = must_make(&(struct recipe){.more = {"ab", "ba", "aba", "abab", "bb"}, .more_kinds = {1, 1, 1, 1, 1},
                                               .merges = {"b b", "a b", "ab ab", "b a", "ab a"}});
    for (size_t len = 1; len < 80; len++) {
        char word[81] = "";
        size_t n, n2;
        for (size_t i = 0; i < len; i++)
            word[i] = (i * i + i / 3) % 3 ? 'a' : 'b';
        uint32_t *ids = encode(m.t, word, len, 0, &n);
        /* The same letters behind a long prefix that merges with nothing: the other way of merging. */
        char longer[160];
        memset(longer, 'x', 60);
        memcpy(longer + 60, word, len);
        uint32_t *ids2 = encode(m.t, longer, 60 + len, 0, &n2);
        assert_int_equal(n2, n + 60);
        assert_memory_equal(ids2 + 60, ids, n * sizeof *ids);
        free(ids);
        free(ids2);
    }
    unmake(&m);
}

static void control_tokens_never_come_out_of_merges(void **state)
{
    (void)state;
    static const char *const pres[] = {"gpt-2", "llama-bpe"};
    for (size_t i = 0; i < 2; i++) {
        struct made m = must_make(&(struct recipe){.pre = pres[i], .more = {"evil", "ev", "il"}, .more_kinds = {3, 1, 1},
                                                   .merges = {"e v", "i l", "ev il"}, .add_bos = -1});
        ids_are(m.t, "evil", 0, "{257}{258}");
        ids_are(m.t, "evil", TOKENIZE_PARSE_SPECIAL, "{256}");
        ids_are(m.t, TOKENIZER_MARK "evil", TOKENIZE_PARSE_SPECIAL, "{257}{258}");
        unmake(&m);
    }
}

static void user_defined_tokens_match_always_and_the_longest_name_wins(void **state)
{
    (void)state;
    struct made m = must_make(&(struct recipe){.more = {"<t>", "<t><t>", "<c>", "<c", "  ", "\xe2\x96\x81"},
                                               .more_kinds = {4, 4, 3, 4, 4, 4}});
    ids_are(m.t, "a<t>b", 0, "a{256}b");
    ids_are(m.t, "<t><t><t>", 0, "{257}{256}");
    ids_are(m.t, "<c>", TOKENIZE_PARSE_SPECIAL, "{258}");
    ids_are(m.t, "<c>", 0, "{259}>");
    ids_are(m.t, TOKENIZER_MARK "<c>", TOKENIZE_PARSE_SPECIAL, "{259}>");
    ids_are(m.t, TOKENIZER_MARK "<t>", TOKENIZE_PARSE_SPECIAL, "{256}");
    ids_are(m.t, "   x", 0, "{260} x");
    ids_are(m.t, "\xe2\x96\x81", 0, "{261}");
    unmake(&m);
}

static void bos_comes_where_the_model_wants_it_and_is_never_doubled(void **state)
{
    (void)state;
    struct recipe r = {.pre = "llama-bpe", .more = {"<s>", "</s>"}, .more_kinds = {3, 3}, .bos = 256, .eos = 257};
    struct made m = must_make(&r);
    unsigned both = TOKENIZE_ADD_SPECIAL | TOKENIZE_PARSE_SPECIAL;
    ids_are(m.t, "a", 0, "a");
    ids_are(m.t, "a", TOKENIZE_ADD_SPECIAL, "{256}a"); /* llama-bpe adds one unless the file says no */
    ids_are(m.t, "<s>a", both, "{256}a");
    ids_are(m.t, "<s><s>a", both, "{256}{256}a");
    ids_are(m.t, "", both, "{256}");
    unmake(&m);
    r.add_bos = -1;
    r.add_eos = 1;
    m = must_make(&r);
    ids_are(m.t, "a", TOKENIZE_ADD_SPECIAL, "a{257}");
    ids_are(m.t, "a</s>", both, "a{257}");
    unmake(&m);
}

static void whole_words_of_llama_bpe_skip_the_merges(void **state)
{
    (void)state;
    struct made m = must_make(&(struct recipe){.pre = "llama-bpe", .more = {"word", "wo"}, .more_kinds = {1, 1},
                                               .merges = {"w o"}});
    ids_are(m.t, "word", 0, "{256}");
    ids_are(m.t, "words", 0, "{257}rds");
    unmake(&m);
}

static void end_tokens_go_by_key_and_by_name(void **state)
{
    (void)state;
    struct made m = must_make(&(struct recipe){
        .eot = 65, .more = {"<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<end_of_turn>", "</s>", "</s>", "<|im_end|>", "x1"},
        .more_kinds = {3, 4, 3, 3, 3, 4, 1, 3}});
    static const int want[] = {1, 1, 1, 1, 1, 0, 0, 0};
    for (uint32_t i = 0; i < 8; i++)
        assert_int_equal(tokenizer_is_end(m.t, 256 + i), want[i]);
    assert_true(tokenizer_is_end(m.t, 65));
    assert_false(tokenizer_is_end(m.t, 66));
    assert_int_equal(tokenizer_eos(m.t), -1);
    unmake(&m);
}

static void odd_tokens_are_harmless(void **state)
{
    (void)state;
    struct made m = must_make(&(struct recipe){
        .more = {"", "\xff\xfe", "\xe4\xbd\xa0", "<0x41>", "[unused]", "", "\xc3", "a b"},
        .more_kinds = {1, 1, 1, 6, 5, 3, 3, 1}, .merges = {"a ", "\xff \xfe"}});
    ids_are(m.t, "a\xc3\xa9", TOKENIZE_PARSE_SPECIAL, "a\xc3\xa9"); /* byte by byte: no half character is a name */
    assert_int_equal(tokenizer_n_control(m.t), 1);
    assert_memory_equal(tokenizer_piece(m.t, 258, 0).data, "\xe4\xbd\xa0", 3);
    assert_int_equal(tokenizer_piece(m.t, 259, 0).len, 1);
    assert_int_equal(tokenizer_piece(m.t, 259, 0).data[0], 'A');
    assert_int_equal(tokenizer_piece(m.t, 260, 0).len, 0);
    assert_int_equal(tokenizer_piece(m.t, UINT32_MAX, 1).len, 0);
    assert_int_equal(tokenizer_control_text(m.t, 7).len, 0);
    unmake(&m);
}

/* FC-39 */
static void characters_in_one_byte_tokens_come_out_whole(void **state)
{
    (void)state;
    static const char text[] = "a\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x92\xbb \xe6\x97\xa5\xe6\x9c\xac \xc3\xa9";
    struct made m = must_make(&(struct recipe){.pre = "gpt-2"});
    for (size_t cut = 0; cut <= strlen(text); cut++) {
        struct detokenizer d;
        struct buf sum, piece;
        uint32_t ids[64];
        size_t len;
        buf_init(&sum, 1 << 12);
        buf_init(&piece, 1 << 12);
        detokenizer_init(&d, m.t, 0);
        for (size_t i = 0; i < cut; i++) {
            ids[i] = (unsigned char)text[i];
            buf_clear(&piece);
            assert_int_equal(detokenizer_push(&d, ids[i], &piece), STATUS_OK);
            buf_append(&sum, piece.data, piece.len);
        }
        assert_int_equal(detokenizer_finish(&d, &sum), STATUS_OK);
        size_t whole = cut;
        while (whole && whole < strlen(text) && ((unsigned char)text[whole] & 0xc0) == 0x80)
            whole--;
        assert_memory_equal(sum.data, text, whole); /* then at most one U+FFFD */
        assert_int_equal(sum.len, whole + (whole < cut ? 3 : 0));
        if (whole < cut)
            assert_memory_equal(sum.data + whole, "\xef\xbf\xbd", 3);
        char *at_once = decode(m.t, ids, cut, 0, &len);
        assert_int_equal(len, sum.len);
        free(at_once);
        buf_fini(&sum);
        buf_fini(&piece);
    }
    unmake(&m);
}

static void bytes_that_are_no_character_become_one_replacement_for_each_maximal_part(void **state)
{
    (void)state;
    static const struct {
        const char *bytes, *want; /* R: U+FFFD */
    } cases[] = {{"\xff", "R"},          {"\x80\x80", "RR"},       {"\xe2\x82z", "Rz"}, {"\xf0\x9f\x92", "R"},
                 {"\xc3\xc3\xa9", "R\xc3\xa9"}, {"\xed\xa0\x80", "RRR"}, {"\xf0\x80\x80\x80", "RRRR"}, {"\xe2\x82\xe2\x82\xac", "R\xe2\x82\xac"},
                 {"\xf4\x90\x80\x80", "RRRR"},  {"\xc0\xaf", "RR"}};
    struct made m = must_make(&(struct recipe){.pre = "gpt-2"});
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        uint32_t ids[8];
        size_t n = strlen(cases[i].bytes), len;
        struct buf want;
        buf_init(&want, 64);
        for (const char *p = cases[i].want; *p; p++)
            *p == 'R' ? buf_text(&want, "\xef\xbf\xbd") : buf_append(&want, p, 1);
        for (size_t k = 0; k < n; k++)
            ids[k] = (unsigned char)cases[i].bytes[k];
        char *got = decode(m.t, ids, n, 0, &len);
        assert_string_equal(got, want.data);
        free(got);
        buf_fini(&want);
    }
    struct detokenizer d;
    struct buf out;
    buf_init(&out, 64);
    detokenizer_init(&d, m.t, 0);
    assert_int_equal(detokenizer_push(&d, 256, &out), STATUS_BAD_REQUEST);
    unmake(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unknown_pre_tokenizers_and_vocabulary_kinds_are_refused_by_name),
        cmocka_unit_test(without_a_pre_tokenizer_the_default_cuts),
        cmocka_unit_test(byte_tokens_with_another_text_are_refused_with_their_index),
        cmocka_unit_test(arrays_that_do_not_fit_are_refused_with_both_numbers),
        cmocka_unit_test(a_special_name_over_the_bound_is_refused),
        cmocka_unit_test(of_equal_tokens_the_lowest_id_encodes),
        cmocka_unit_test(merges_that_name_no_token_change_nothing),
        cmocka_unit_test(the_lowest_rank_and_then_the_leftmost_pair_is_merged),
        cmocka_unit_test(short_and_long_words_merge_alike),
        cmocka_unit_test(control_tokens_never_come_out_of_merges),
        cmocka_unit_test(user_defined_tokens_match_always_and_the_longest_name_wins),
        cmocka_unit_test(bos_comes_where_the_model_wants_it_and_is_never_doubled),
        cmocka_unit_test(whole_words_of_llama_bpe_skip_the_merges),
        cmocka_unit_test(end_tokens_go_by_key_and_by_name),
        cmocka_unit_test(odd_tokens_are_harmless),
        cmocka_unit_test(characters_in_one_byte_tokens_come_out_whole),
        cmocka_unit_test(bytes_that_are_no_character_become_one_replacement_for_each_maximal_part),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
