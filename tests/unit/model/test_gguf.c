#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/base/check.h"
#include "common/model/gguf.h"
#include "tests/unit/model/gguf_maker.h"

enum { U8, I8, U16, I16, U32, I32, F32, BOOL, TEXT, ARRAY, U64, I64, F64 };

static struct gguf *open_made(struct maker *m, uint8_t **bytes)
{
    struct gguf *g;
    struct error err = {0};
    size_t len;
    *bytes = maker_write(m, &len);
    if (gguf_open_memory(*bytes, len, &g, &err) != STATUS_OK)
        fail_msg("%s", err.message);
    return g;
}

static struct gguf *open_file(const char *path)
{
    struct gguf *g;
    struct error err = {0};
    if (gguf_open(path, &g, &err) != STATUS_OK)
        fail_msg("%s", err.message);
    return g;
}

static void assert_text(struct text t, const char *s)
{
    assert_int_equal(t.len, strlen(s));
    assert_memory_equal(t.data, s, t.len);
}

static void gguf_reads_integers_of_every_width(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        uint32_t type;
        uint64_t value;
        uint32_t bytes;
    } cases[] = {
        {"u8", U8, 0xff, 1},  {"i8", I8, 0x7f, 1},        {"u16", U16, 0xffff, 2},     {"i16", I16, 0x7fff, 2},
        {"u32", U32, ~0u, 4}, {"i32", I32, INT32_MAX, 4}, {"u64", U64, UINT64_MAX, 8}, {"i64", I64, INT64_MAX, 8},
    };
    struct maker *m = maker_create();
    uint8_t raw[8], *bytes;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        put_u64(raw, cases[i].value);
        maker_raw(m, cases[i].name, cases[i].type, raw, cases[i].bytes);
    }
    struct gguf *g = open_made(m, &bytes);
    assert_int_equal(gguf_n_keys(g), ARRAY_LEN(cases));
    assert_int_equal(gguf_n_tensors(g), 0);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        uint64_t v = 0;
        assert_int_equal(gguf_u64(g, cases[i].name, &v), 1);
        assert_true(v == cases[i].value);
    }
    gguf_close(g);
    free(bytes);
    maker_destroy(m);
}

static void gguf_gives_no_value_of_another_type_and_leaves_the_argument(void **state)
{
    (void)state;
    struct maker *m = maker_create();
    uint8_t raw[8], *bytes;
    put_u64(raw, UINT64_MAX);
    maker_raw(m, "minus_one", I32, raw, 4);
    maker_bool(m, "yes", 1);
    maker_f32(m, "half", 0.5f);
    maker_text(m, "word", "seven");
    maker_texts(m, "words", 3);
    struct gguf *g = open_made(m, &bytes);
    uint64_t u = 77;
    double f = 77;
    int b = 77;
    struct text t = {"77", 2};
    static const char *const names[] = {"minus_one", "yes", "half", "word", "words", "absent", ""};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        assert_int_equal(gguf_u64(g, names[i], &u), 0);
        assert_int_equal(gguf_f64(g, names[i], &f), strcmp(names[i], "half") == 0);
        assert_int_equal(gguf_bool(g, names[i], &b), strcmp(names[i], "yes") == 0);
        assert_int_equal(gguf_text(g, names[i], &t), strcmp(names[i], "word") == 0);
        assert_int_equal(gguf_array_texts(g, names[i], &u), strcmp(names[i], "words") == 0);
        assert_int_equal(gguf_array_f32(g, names[i], &u), 0);
        assert_int_equal(gguf_array_ints(g, names[i], &u), 0);
        assert_int_equal(gguf_has(g, names[i]), i < 5);
        if (strcmp(names[i], "words") != 0)
            assert_true(u == 77 || u == 3);
    }
    assert_true(u == 3 && f == 0.5 && b == 1);
    assert_text(t, "seven");
    gguf_close(g);
    free(bytes);
    maker_destroy(m);
}

static void gguf_reads_arrays_whole_in_part_and_never_beyond(void **state)
{
    (void)state;
    struct maker *m = maker_create();
    uint8_t raw[12 + 3 * 8] = {0}, *bytes;
    put_u32(raw, I16);
    put_u64(raw + 4, 3);
    memcpy(raw + 12, "\x01\x00\xff\xff\x00\x80", 6);
    maker_raw(m, "ints", ARRAY, raw, 12 + 6);
    put_u32(raw, U64);
    put_u64(raw + 12, 5);
    put_u64(raw + 20, UINT64_MAX);
    put_u64(raw + 28, 6);
    maker_raw(m, "large", ARRAY, raw, sizeof raw);
    put_u32(raw, F32);
    put_u64(raw + 4, 1);
    put_u32(raw + 12, 0xbf000000);
    maker_raw(m, "floats", ARRAY, raw, 16);
    maker_texts(m, "words", 12);
    struct gguf *g = open_made(m, &bytes);
    int64_t ints[4];
    float floats[2];
    struct text words[13];
    uint64_t n;
    assert_true(gguf_array_ints(g, "ints", &n) && n == 3);
    assert_int_equal(gguf_read_i64(g, "ints", ints, 3), STATUS_OK);
    assert_true(ints[0] == 1 && ints[1] == -1 && ints[2] == INT16_MIN);
    assert_int_equal(gguf_read_i64(g, "ints", ints, 4), STATUS_BAD_MODEL);
    assert_int_equal(gguf_read_i64(g, "large", ints, 1), STATUS_OK);
    assert_int_equal(gguf_read_i64(g, "large", ints, 3), STATUS_BAD_MODEL); /* 2^64-1 is no int64_t */
    assert_int_equal(gguf_read_i64(g, "words", ints, 1), STATUS_BAD_MODEL);
    assert_true(gguf_array_f32(g, "floats", &n) && n == 1);
    assert_int_equal(gguf_read_f32(g, "floats", floats, 1), STATUS_OK);
    assert_true(floats[0] == -0.5f);
    assert_int_equal(gguf_read_f32(g, "floats", floats, 2), STATUS_BAD_MODEL);
    assert_true(gguf_array_texts(g, "words", &n) && n == 12);
    assert_int_equal(gguf_read_texts(g, "words", words, 12), STATUS_OK);
    assert_text(words[0], "t0");
    assert_text(words[11], "t11");
    assert_int_equal(gguf_read_texts(g, "words", words, 13), STATUS_BAD_MODEL);
    assert_int_equal(gguf_read_texts(g, "absent", words, 0), STATUS_BAD_MODEL);
    gguf_close(g);
    free(bytes);
    maker_destroy(m);
}

static void gguf_reads_tensors_of_one_to_four_dimensions(void **state)
{
    (void)state;
    struct maker *m = maker_create();
    uint8_t *bytes;
    maker_add_tensor(m, "one", 0, 5, 1);
    *maker_add_tensor(m, "four", 8, 64, 3) =
        (struct maker_tensor){.name = "four", .type = 8, .n_dims = 4, .ne = {64, 3, 2, 5}};
    struct gguf *g = open_made(m, &bytes);
    const struct gguf_tensor *one = gguf_find_tensor(g, "one"), *four = gguf_find_tensor(g, "four");
    assert_ptr_equal(one, gguf_tensor(g, 0));
    assert_ptr_equal(four, gguf_tensor(g, 1));
    assert_true(one->n_dims == 1 && one->ne[0] == 5 && one->ne[1] == 1 && one->ne[3] == 1 && one->bytes == 20);
    assert_true(four->n_dims == 4 && four->ne[0] == 64 && four->ne[3] == 5);
    assert_int_equal(four->bytes, 2 * 34 * 3 * 2 * 5);
    assert_int_equal(four->file_offset, m->tensors[1].at_data);
    assert_ptr_equal(four->data, bytes + four->file_offset);
    assert_null(gguf_find_tensor(g, "on"));
    assert_null(gguf_find_tensor(g, "onee"));
    gguf_close(g);
    free(bytes);
    maker_destroy(m);
}

static void gguf_honours_the_alignment_of_the_file(void **state)
{
    (void)state;
    static const uint32_t alignments[] = {8, 16, 64, 4096, 1 << 20};
    for (size_t i = 0; i < ARRAY_LEN(alignments); i++) {
        struct maker *m = maker_create();
        uint8_t *bytes;
        m->alignment = alignments[i];
        maker_u32(m, "general.alignment", alignments[i]);
        maker_add_tensor(m, "a", 0, 3, 1);
        maker_add_tensor(m, "b", 0, 3, 1);
        struct gguf *g = open_made(m, &bytes);
        const struct gguf_tensor *b = gguf_find_tensor(g, "b");
        assert_int_equal(b->file_offset % alignments[i], 0);
        assert_memory_equal(b->data, "\0\0\x80\x3f", 4);
        gguf_close(g);
        free(bytes);
        maker_destroy(m);
    }
}

static void gguf_reads_version_2(void **state)
{
    (void)state;
    struct maker *m = maker_create();
    struct gguf *g;
    size_t len;
    maker_u32(m, "a", 1);
    uint8_t *bytes = maker_write(m, &len);
    bytes[4] = 2;
    assert_int_equal(gguf_open_memory(bytes, len, &g, NULL), STATUS_OK);
    gguf_close(g);
    free(bytes);
    maker_destroy(m);
}

static void gguf_reads_a_file_that_gguf_py_wrote(void **state)
{
    (void)state;
    struct gguf *g = open_file(SLUICE_VECTORS "/tiny/llama-f32.gguf");
    uint64_t n, u;
    struct text t, tokens[320];
    assert_int_equal(gguf_file_bytes(g), 616288);
    assert_int_equal(gguf_n_keys(g), 26);
    assert_int_equal(gguf_n_tensors(g), 30);
    assert_true(gguf_text(g, "general.architecture", &t));
    assert_text(t, "llama");
    assert_true(gguf_u64(g, "llama.feed_forward_length", &u) && u == 128);
    assert_true(gguf_array_texts(g, "tokenizer.ggml.tokens", &n) && n == 320);
    assert_int_equal(gguf_read_texts(g, "tokenizer.ggml.tokens", tokens, 320), STATUS_OK);
    assert_text(tokens[1], "<|im_start|>");
    const struct gguf_tensor *norm = gguf_find_tensor(g, "output_norm.weight");
    assert_int_equal(norm->file_offset, 8288 + 81920);
    assert_memory_equal(norm->data, "\x50\x90\x77\x3f\x30\xce\x98\x3f", 8);
    for (uint32_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *x = gguf_tensor(g, i);
        char name[96] = {0};
        memcpy(name, x->name.data, x->name.len);
        assert_ptr_equal(gguf_find_tensor(g, name), x);
    }
    gguf_close(g);
}

/* The sums were made with Python's hashlib by the words of design.md. */
static void gguf_hash_is_sha256_over_table_size_and_ends_of_tensors(void **state)
{
    (void)state;
    static const struct {
        const char *path, *hex;
    } cases[] = {
        {SLUICE_VECTORS "/tiny/llama-f32.gguf", "c9081c8088ff9c585e176524f25297b054dfad0c8d1d7491da630aab0466eddd"},
        {SLUICE_VECTORS "/tiny/llama-q8_0.gguf", "07edb66abfda0b3cc6e2dbac19ea7939024ee4613d17af4ea23138d9ba9cf060"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct gguf *g = open_file(cases[i].path);
        uint8_t hash[32];
        char hex[65];
        gguf_hash(g, hash);
        for (int b = 0; b < 32; b++)
            snprintf(hex + 2 * b, 3, "%02x", hash[b]);
        assert_string_equal(hex, cases[i].hex);
        gguf_close(g);
    }
}

static void hash_bytes(const uint8_t *bytes, size_t len, uint8_t out[32])
{
    struct gguf *g;
    assert_int_equal(gguf_open_memory(bytes, len, &g, NULL), STATUS_OK);
    gguf_hash(g, out);
    gguf_close(g);
}

static void gguf_hash_changes_with_metadata_and_the_ends_of_a_tensor(void **state)
{
    (void)state;
    struct maker *m = maker_create();
    uint8_t before[32], after[32];
    size_t len;
    maker_u32(m, "a", 1);
    maker_add_tensor(m, "x", 0, 64, 100); /* 25600 bytes */
    uint8_t *bytes = maker_write(m, &len);
    size_t data = m->tensors[0].at_data;
    const struct {
        size_t at;
        int changes;
    } cases[] = {
        {m->keys[0].at_value, 1}, {data, 1},       {data + 4095, 1}, {data + 25599, 1},
        {data + 25600 - 4096, 1}, {data + 4096, 0}}; /* the middle is not read: opening a large model takes no time */
    hash_bytes(bytes, len, before);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        bytes[cases[i].at] ^= 1;
        hash_bytes(bytes, len, after);
        bytes[cases[i].at] ^= 1;
        assert_int_equal(memcmp(before, after, 32) != 0, cases[i].changes);
    }
    free(bytes);
    maker_destroy(m);
}

static void refused(const char *path, enum status status, const char *why)
{
    struct gguf *untouched = (struct gguf *)&untouched, *g = untouched;
    struct error err = {0};
    assert_int_equal(gguf_open(path, &g, &err), status);
    assert_ptr_equal(g, untouched);
    if (!strstr(err.message, why) || !strstr(err.message, path))
        fail_msg("'%s' does not say '%s' of %s", err.message, why, path);
}

static void gguf_open_refuses_what_is_no_model_file(void **state)
{
    (void)state;
    char path[] = "/tmp/test_gguf_XXXXXX", fifo[64];
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    refused("/nowhere/model.gguf", STATUS_IO, "No such file");
    refused("/tmp", STATUS_IO, "not a file");
    refused(path, STATUS_BAD_MODEL, "empty");
    assert_int_equal(write(fd, "GGUF", 4), 4);
    refused(path, STATUS_BAD_MODEL, "version at byte 4 needs 4 bytes");
    close(fd);
    unlink(path);
    snprintf(fifo, sizeof fifo, "%s.fifo", path);
    assert_int_equal(mkfifo(fifo, 0600), 0);
    refused(fifo, STATUS_IO, "not a file");
    unlink(fifo);
}

/* Exit code 5, not 3: the file may be a good one. */
static void gguf_open_says_when_there_is_no_room_to_map_a_file(void **state)
{
    (void)state;
    struct rlimit before, none;
    struct gguf *g;
    struct error err;
    assert_int_equal(getrlimit(RLIMIT_AS, &before), 0);
    none = (struct rlimit){.rlim_cur = 1, .rlim_max = before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_AS, &none), 0);
    enum status s = gguf_open("/proc/self/exe", &g, &err);
    assert_int_equal(setrlimit(RLIMIT_AS, &before), 0);
    assert_int_equal(s, STATUS_OUT_OF_MEMORY);
    assert_non_null(strstr(err.message, "/proc/self/exe: cannot map "));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gguf_reads_integers_of_every_width),
        cmocka_unit_test(gguf_gives_no_value_of_another_type_and_leaves_the_argument),
        cmocka_unit_test(gguf_reads_arrays_whole_in_part_and_never_beyond),
        cmocka_unit_test(gguf_reads_tensors_of_one_to_four_dimensions),
        cmocka_unit_test(gguf_honours_the_alignment_of_the_file),
        cmocka_unit_test(gguf_reads_version_2),
        cmocka_unit_test(gguf_reads_a_file_that_gguf_py_wrote),
        cmocka_unit_test(gguf_hash_is_sha256_over_table_size_and_ends_of_tensors),
        cmocka_unit_test(gguf_hash_changes_with_metadata_and_the_ends_of_a_tensor),
        cmocka_unit_test(gguf_open_refuses_what_is_no_model_file),
        cmocka_unit_test(gguf_open_says_when_there_is_no_room_to_map_a_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
