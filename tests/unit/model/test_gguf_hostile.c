/* Hostile model files, group 8 of the failure cases: a number from the file is used before it is checked. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/rand.h"
#include "common/model/gguf.h"
#include "common/model/hparams.h"
#include "tests/unit/model/gguf_maker.h"

enum { U32 = 4, I32 = 5, F32 = 6, BOOL = 7, TEXT = 8, ARRAY = 9, U64 = 10 };

#define SIGNED_LARGE (1ull << 63)

static const struct maker_shape SMALL = {
    .n_layers = 2, .n_embd = 8, .n_heads = 2, .n_kv_heads = 1, .n_ff = 16, .n_vocab = 5, .type = 0, .tied = 1};

/* The whole way in: file, hyper-parameters, tensors. */
static enum status open_model(const uint8_t *bytes, size_t len, struct error *err)
{
    struct gguf *g;
    struct model m;
    enum status s = gguf_open_memory(bytes, len, &g, err);
    if (s != STATUS_OK)
        return s;
    s = model_from_gguf(g, "made.gguf", &m, err);
    if (s != STATUS_OK)
        gguf_close(g);
    else
        model_close(&m);
    return s;
}

static void refused(const uint8_t *bytes, size_t len, const char *why)
{
    struct error err = {0};
    int64_t start = clock_now_ns();
    enum status s = open_model(bytes, len, &err);
    int64_t took = clock_now_ns() - start;
    if (s != STATUS_BAD_MODEL)
        fail_msg("status %d instead of a refusal that says '%s' (%s)", (int)s, why, err.message);
    if (!strstr(err.message, why))
        fail_msg("'%s' does not say '%s'", err.message, why);
    assert_true(took < 1000000000);
}

static void made_is_refused(struct maker *m, const char *why)
{
    size_t len;
    uint8_t *bytes = maker_write(m, &len);
    refused(bytes, len, why);
    free(bytes);
}

static struct maker *small_model(void)
{
    struct maker *m = maker_create();
    maker_llama(m, &SMALL);
    return m;
}

static uint64_t get(const uint8_t *at, int width)
{
    uint64_t v = 0;
    for (int i = 0; i < width; i++)
        v |= (uint64_t)at[i] << 8 * i;
    return v;
}

static void put(uint8_t *at, int width, uint64_t v)
{
    if (width == 8)
        put_u64(at, v);
    else
        put_u32(at, (uint32_t)v);
}

/* FC-53: a field at each of the bad values is refused; at its own value the file loads. */
static void field_is_checked(uint8_t *bytes, size_t len, size_t at, int width, const char *what)
{
    static const uint64_t values[] = {0, 1, 1ull << 31, SIGNED_LARGE, UINT64_MAX, 0x100000001ull};
    uint64_t right = get(bytes + at, width), mask = width == 8 ? UINT64_MAX : UINT32_MAX;
    for (size_t i = 0; i < ARRAY_LEN(values); i++) {
        struct error err = {0};
        uint64_t v = values[i] & mask;
        if (v == right)
            continue;
        put(bytes + at, width, v);
        enum status s = open_model(bytes, len, &err);
        put(bytes + at, width, right);
        if (s != STATUS_BAD_MODEL || !err.message[0])
            fail_msg("%s at byte %zu set from %" PRIu64 " to %" PRIu64 ": status %d '%s'", what, at, right, v, (int)s,
                     err.message);
    }
    assert_int_equal(open_model(bytes, len, NULL), STATUS_OK);
}

static void hostile_counts_types_dimensions_and_offsets_are_refused(void **state)
{
    (void)state;
    struct maker *m = small_model();
    size_t len;
    uint8_t *bytes = maker_write(m, &len);
    assert_int_equal(open_model(bytes, len, NULL), STATUS_OK);
    field_is_checked(bytes, len, 4, 4, "version");
    field_is_checked(bytes, len, 8, 8, "n_tensors");
    field_is_checked(bytes, len, 16, 8, "n_kv");
    for (uint32_t i = 0; i < m->n_keys; i++) {
        field_is_checked(bytes, len, m->keys[i].at, 8, "key name length");
        field_is_checked(bytes, len, m->keys[i].at_type, 4, "value type");
    }
    for (uint32_t i = 0; i < m->n_tensors; i++) {
        const struct maker_tensor *t = &m->tensors[i];
        field_is_checked(bytes, len, t->at, 8, "tensor name length");
        field_is_checked(bytes, len, t->at_n_dims, 4, "n_dims");
        for (uint32_t d = 0; d < t->n_dims; d++)
            field_is_checked(bytes, len, t->at_ne + 8 * d, 8, "dimension");
        field_is_checked(bytes, len, t->at_type, 4, "tensor type");
        field_is_checked(bytes, len, t->at_offset, 8, "offset");
    }
    field_is_checked(bytes, len, maker_key(m, "tokenizer.ggml.tokens")->at_value, 4, "array type");
    field_is_checked(bytes, len, maker_key(m, "tokenizer.ggml.tokens")->at_value + 4, 8, "array length");
    field_is_checked(bytes, len, maker_key(m, "tokenizer.ggml.tokens")->at_value + 12, 8, "array text length");
    field_is_checked(bytes, len, maker_key(m, "general.architecture")->at_value, 8, "text length");
    free(bytes);
    maker_destroy(m);
}

static void hostile_tensor_types_are_refused(void **state)
{
    (void)state;
    struct maker *m = small_model();
    size_t len;
    uint8_t *bytes = maker_write(m, &len);
    size_t at = maker_tensor(m, "blk.0.attn_q.weight")->at_type;
    static const uint32_t none[] = {4, 5, 9, 15, 31, 38, 41, 1000, 1u << 31, UINT32_MAX};
    char why[80];
    for (size_t i = 0; i < ARRAY_LEN(none); i++) {
        put_u32(bytes + at, none[i]);
        snprintf(why, sizeof why, "tensor type at byte %zu is %u: no such type", at, none[i]);
        refused(bytes, len, why);
    }
    put_u32(bytes + at, 8); /* Q8_0: 32 elements, the rows have 8 */
    snprintf(why, sizeof why, "tensor type Q8_0 at byte %zu has blocks of 32 elements", at);
    refused(bytes, len, why);
    free(bytes);
    maker_destroy(m);
}

static void hostile_dimensions_whose_product_overflows_are_refused(void **state)
{
    (void)state;
    static const uint64_t ne[][4] = {
        {1ull << 32, 1ull << 32, 1, 1}, {1ull << 16, 1ull << 16, 1ull << 16, 1ull << 16},
        {SIGNED_LARGE, 2, 1, 1},        {3, 0x5555555555555556ull, 1, 1}, /* 3 x = 2 modulo 2^64 */
        {1ull << 62, 1, 1, 1},          {1ull << 62, 4, 1, 1},
        {2, 2, 2, 1ull << 62},          {1, 0, 1, 1},
    };
    for (size_t i = 0; i < ARRAY_LEN(ne); i++) {
        struct maker *m = maker_create();
        size_t len;
        *maker_add_tensor(m, "x", 0, 1, 1) = (struct maker_tensor){.name = "x", .n_dims = 4, .ne = {1, 1, 1, 1}};
        uint8_t *bytes = maker_write(m, &len);
        for (int d = 0; d < 4; d++)
            put_u64(bytes + m->tensors[0].at_ne + 8 * d, ne[i][d]);
        refused(bytes, len, " at byte ");
        free(bytes);
        maker_destroy(m);
    }
}

/* FC-54 */
static void hostile_alignments_are_refused(void **state)
{
    (void)state;
    static const uint64_t values[] = {0, 1, 3, 4, 33, 1ull << 21, 1ull << 31, SIGNED_LARGE, UINT64_MAX};
    for (size_t i = 0; i < ARRAY_LEN(values); i++) {
        struct maker *m = small_model();
        uint8_t raw[8];
        char why[96];
        size_t len;
        put_u64(raw, values[i]);
        maker_raw(m, "general.alignment", values[i] > UINT32_MAX ? U64 : U32, raw, values[i] > UINT32_MAX ? 8 : 4);
        uint8_t *bytes = maker_write(m, &len);
        snprintf(why, sizeof why, "general.alignment at byte %zu is %" PRIu64,
                 maker_key(m, "general.alignment")->at_value, values[i]);
        refused(bytes, len, why);
        free(bytes);
        maker_destroy(m);
    }
    struct maker *m = small_model();
    maker_f32(m, "general.alignment", 32);
    made_is_refused(m, "general.alignment at byte");
    maker_raw(m, "general.alignment", I32, "\xe0\xff\xff\xff", 4);
    made_is_refused(m, "not an unsigned integer");
    maker_text(m, "general.alignment", "32");
    made_is_refused(m, "not an unsigned integer");
    maker_destroy(m);
}

static long peak_kib(void)
{
    char line[256];
    long kib = -1;
    FILE *f = fopen("/proc/self/status", "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f))
        sscanf(line, "VmHWM: %ld", &kib);
    fclose(f);
    assert_true(kib > 0);
    return kib;
}

/* Starts the peak anew at what is resident now, so that no earlier test hides growth. */
static long reset_peak_kib(void)
{
    FILE *f = fopen("/proc/self/clear_refs", "w");
    assert_non_null(f);
    fputs("5", f);
    assert_int_equal(fclose(f), 0);
    return peak_kib();
}

/* 160 bytes that ask for GiB, by each of the counts. */
static void hostile_small_file_that_asks_for_much_gets_little(void **state)
{
    (void)state;
    static const uint64_t asks[] = {1u << 16, 1u << 20, 1ull << 31, 1ull << 40, SIGNED_LARGE, UINT64_MAX};
    long before = reset_peak_kib();
    for (size_t i = 0; i < ARRAY_LEN(asks); i++) {
        uint8_t bytes[160] = "GGUF\3";
        put_u64(bytes + 8, asks[i]);
        refused(bytes, sizeof bytes, "n_tensors at byte 8");
        put_u64(bytes + 8, 0);
        put_u64(bytes + 16, asks[i]);
        refused(bytes, sizeof bytes, "n_kv at byte 16");
        put_u64(bytes + 16, 1);
        put_u64(bytes + 24, asks[i]);
        refused(bytes, sizeof bytes, "key name at byte 24");
        put_u64(bytes + 24, 1);
        put_u32(bytes + 33, ARRAY);
        for (uint32_t element = 0; element <= 12; element++) {
            put_u32(bytes + 37, element);
            put_u64(bytes + 41, asks[i]);
            refused(bytes, sizeof bytes, element == ARRAY ? "array type at byte 37" : "array length at byte 41");
        }
        put_u32(bytes + 33, TEXT);
        put_u64(bytes + 37, asks[i]);
        refused(bytes, sizeof bytes, "text value at byte 37");
        put_u64(bytes + 37, 0);
    }
    assert_true(peak_kib() - before < 16 * 1024);
}

/* FC-55. The bytes end where a page ends: a read beyond them is a crash. */
static void hostile_every_prefix_of_a_small_file_is_refused(void **state)
{
    (void)state;
    struct maker *m = small_model();
    size_t len, page = (size_t)sysconf(_SC_PAGESIZE);
    uint8_t *bytes = maker_write(m, &len);
    size_t room = (len + page - 1) / page * page;
    uint8_t *map = mmap(NULL, room + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(map, MAP_FAILED);
    assert_int_equal(mprotect(map + room, page, PROT_NONE), 0);
    for (size_t n = 0; n <= len; n++) {
        uint8_t *at = map + room - n;
        memcpy(at, bytes, n);
        assert_int_equal(open_model(at, n, NULL), n == len ? STATUS_OK : STATUS_BAD_MODEL);
    }
    munmap(map, room + page);
    free(bytes);
    maker_destroy(m);
}

static uint8_t *read_file(const char *path, size_t *len)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    *len = (size_t)ftell(f);
    rewind(f);
    uint8_t *bytes = malloc(*len);
    assert_int_equal(fread(bytes, 1, *len, f), *len);
    fclose(f);
    return bytes;
}

/* The same with a file that another program wrote: all of its header, metadata and table, and places in its data. */
static void hostile_prefixes_of_a_real_file_are_refused(void **state)
{
    (void)state;
    enum { DATA_AT = 8288 };
    size_t len;
    uint8_t *bytes = read_file(SLUICE_VECTORS "/tiny/llama-q4_0.gguf", &len);
    assert_int_equal(open_model(bytes, len, NULL), STATUS_OK);
    for (size_t n = 0; n < len; n += n < DATA_AT || n + 64 > len ? 1 : 64)
        assert_int_equal(open_model(bytes, n, NULL), STATUS_BAD_MODEL);
    free(bytes);
}

/* FC-56 */
static void hostile_tensors_outside_the_file_are_refused(void **state)
{
    (void)state;
    struct maker *m = small_model();
    size_t len;
    uint8_t *bytes = maker_write(m, &len);
    struct maker_tensor *last = &m->tensors[m->n_tensors - 1];
    char why[160];
    snprintf(why, sizeof why, "offset of tensor '%s' at byte %zu is %" PRIu64, last->name, last->at_offset,
             last->offset);
    assert_int_equal(last->at_data + 8 * 16 * 4, len);
    assert_int_equal(open_model(bytes, len, NULL), STATUS_OK);
    refused(bytes, len - 1, why); /* offset + size = file + 1 */
    static const uint64_t far[] = {1ull << 32, SIGNED_LARGE, UINT64_MAX - 31};
    for (size_t i = 0; i < ARRAY_LEN(far); i++) {
        put_u64(bytes + last->at_offset, far[i]);
        refused(bytes, len, "ends behind the file");
    }
    free(bytes);
    maker_destroy(m);
}

static void hostile_overlapping_and_misaligned_tensors_are_refused(void **state)
{
    (void)state;
    struct maker *m = small_model();
    size_t len;
    uint8_t *bytes = maker_write(m, &len);
    struct maker_tensor *k = maker_tensor(m, "blk.1.attn_k.weight"), *q = maker_tensor(m, "blk.1.attn_q.weight");
    static const struct {
        int64_t shift;
        const char *why;
    } cases[] = {
        {-32, "puts it inside tensor 'blk.1.attn_q.weight'"},
        {-224, "puts it inside tensor 'blk.1.attn_q.weight'"},
        {32, "leaves 32 bytes before it to no tensor"}, /* and its end lies in attn_v */
    };
    char why[160];
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        put_u64(bytes + k->at_offset, k->offset + (uint64_t)cases[i].shift);
        refused(bytes, len, cases[i].why);
    }
    put_u64(bytes + k->at_offset, q->offset); /* the very same place */
    refused(bytes, len, "puts it inside tensor 'blk.1.");
    for (uint64_t shift = 1; shift < 32; shift++) {
        put_u64(bytes + k->at_offset, k->offset + shift);
        snprintf(why, sizeof why, "offset of tensor 'blk.1.attn_k.weight' at byte %zu is %" PRIu64 ": not a multiple",
                 k->at_offset, k->offset + shift);
        refused(bytes, len, why);
    }
    free(bytes);
    maker_destroy(m);
}

/* FC-57 */
static void hostile_duplicates_are_refused_with_both_places(void **state)
{
    (void)state;
    struct maker *m = small_model();
    size_t len;
    char why[160];
    maker_add_raw(m, "llama.block_count", U32, "\2\0\0", 4);
    uint8_t *bytes = maker_write(m, &len);
    snprintf(why, sizeof why, "key 'llama.block_count' at byte %zu is there already, at byte %zu",
             m->keys[m->n_keys - 1].at + 8, maker_key(m, "llama.block_count")->at + 8);
    refused(bytes, len, why);
    free(bytes);
    maker_destroy(m);

    m = small_model();
    maker_add_tensor(m, "blk.0.attn_q.weight", 0, 8, 8);
    bytes = maker_write(m, &len);
    snprintf(why, sizeof why, "tensor 'blk.0.attn_q.weight' at byte %zu is there already, at byte %zu",
             m->tensors[m->n_tensors - 1].at + 8, maker_tensor(m, "blk.0.attn_q.weight")->at + 8);
    refused(bytes, len, why);
    free(bytes);
    maker_destroy(m);
}

static void hostile_header_is_refused_by_field(void **state)
{
    (void)state;
    static const struct {
        size_t at;
        uint8_t byte;
        const char *why;
    } cases[] = {
        {0, 'X', "magic at byte 0"},
        {3, 'g', "magic at byte 0"},
        {4, 0, "version at byte 4 is 0: only versions 2 and 3"},
        {4, 1, "version at byte 4 is 1: only versions 2 and 3"},
        {4, 4, "version at byte 4 is 4: only versions 2 and 3"},
    };
    struct maker *m = small_model();
    size_t len;
    uint8_t *bytes = maker_write(m, &len);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        uint8_t right = bytes[cases[i].at];
        bytes[cases[i].at] = cases[i].byte;
        refused(bytes, len, cases[i].why);
        bytes[cases[i].at] = right;
    }
    memcpy(bytes + 4, "\0\0\0\3", 4);
    refused(bytes, len, "version at byte 4 is 50331648: big-endian");
    free(bytes);
    maker_destroy(m);
}

static void hostile_values_are_refused_by_field(void **state)
{
    (void)state;
    struct maker *m = small_model();
    maker_bool(m, "odd", 2);
    made_is_refused(m, "bool value at byte");
    maker_raw(m, "odd", 13, "", 0);
    made_is_refused(m, "is 13: no such type");
    maker_raw(m, "odd", ARRAY, "\x09\0\0\0\1\0\0\0\0\0\0\0", 12);
    made_is_refused(m, "arrays of arrays");
    maker_drop(m, "odd");
    maker_u32(m, "", 1);
    made_is_refused(m, "key name at byte");
    maker_destroy(m);
    m = small_model();
    maker_add_tensor(m, "", 0, 8, 1);
    made_is_refused(m, "tensor name at byte");
    maker_destroy(m);
}

static void hostile_names_reach_no_log_as_control_characters(void **state)
{
    (void)state;
    struct maker *m = small_model();
    struct error err = {0};
    size_t len;
    maker_add_raw(m, "a\n\x1b[31mb", U32, "\0\0\0", 4);
    maker_add_raw(m, "a\n\x1b[31mb", U32, "\0\0\0", 4);
    uint8_t *bytes = maker_write(m, &len);
    assert_int_equal(open_model(bytes, len, &err), STATUS_BAD_MODEL);
    assert_non_null(strstr(err.message, "'a??[31mb'"));
    for (const char *p = err.message; *p; p++)
        assert_true(*p >= 0x20 && *p < 0x7f);
    free(bytes);
    maker_destroy(m);
}

/* The largest tables that are let in, in the order that suits sorting least, stay within time and memory. */
static void hostile_largest_tables_are_read_in_time_and_memory(void **state)
{
    (void)state;
    enum { N = 65536, STEP = 8 + 88 + 4 + 4 };
    size_t len = 24 + (size_t)N * STEP;
    uint8_t *bytes = malloc(len);
    struct gguf *g;
    char name[96];
    assert_non_null(bytes);
    memcpy(bytes, "GGUF\3\0\0\0\0\0\0\0\0\0\0\0", 16);
    put_u64(bytes + 16, N);
    for (uint32_t i = 0; i < N; i++) {
        uint8_t *at = bytes + 24 + (size_t)i * STEP;
        snprintf(name, sizeof name, "%080d%08u", 0, (i * 40503u) % N); /* a permutation behind a long common prefix */
        put_u64(at, 88);
        memcpy(at + 8, name, 88);
        put_u32(at + 96, U32);
        put_u32(at + 100, i);
    }
    long before = reset_peak_kib();
    int64_t start = clock_now_ns();
    assert_int_equal(gguf_open_memory(bytes, len, &g, NULL), STATUS_OK);
    assert_true(clock_now_ns() - start < 1000000000);
    assert_true(peak_kib() - before < 16 * 1024);
    uint64_t v;
    snprintf(name, sizeof name, "%080d%08u", 0, (12345u * 40503u) % N);
    assert_true(gguf_u64(g, name, &v) && v == 12345);
    gguf_close(g);
    memcpy(bytes + 24 + (size_t)(N - 1) * STEP + 8, bytes + 24 + 8, 88);
    refused(bytes, len, "is there already, at byte 32");
    free(bytes);
}

/* Reads all that a file offers, so that a sanitizer sees what points outside it. */
static uint64_t read_everything(const struct gguf *g, const uint8_t *bytes, size_t len)
{
    uint64_t sum = gguf_n_keys(g), n;
    for (uint32_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor(g, i);
        assert_true(t->data >= bytes && t->bytes > 0 && t->data + t->bytes <= bytes + len);
        sum += t->data[0] + t->data[t->bytes - 1];
    }
    if (gguf_array_texts(g, "tokenizer.ggml.tokens", &n)) {
        struct text *texts = calloc(n + 1, sizeof *texts);
        assert_int_equal(gguf_read_texts(g, "tokenizer.ggml.tokens", texts, n), STATUS_OK);
        for (uint64_t i = 0; i < n; i++)
            sum += texts[i].len ? (uint8_t)texts[i].data[texts[i].len - 1] : 0;
        free(texts);
    }
    return sum;
}

static void hostile_random_changes_never_reach_outside_the_file(void **state)
{
    (void)state;
    enum { ROUNDS = 30000 };
    struct maker *m = small_model();
    size_t len;
    uint8_t *bytes = maker_write(m, &len), *copy = malloc(len);
    uint64_t sum = 0, n_opened = 0;
    for (uint64_t round = 0; round < ROUNDS; round++) {
        struct gguf *g;
        uint64_t n_changes = 1 + rand_at(round, 0) % 4;
        memcpy(copy, bytes, len);
        for (uint64_t i = 0; i < n_changes; i++)
            copy[rand_at(round, 2 * i + 1) % m->table_end] = (uint8_t)rand_at(round, 2 * i + 2);
        if (gguf_open_memory(copy, len, &g, NULL) != STATUS_OK)
            continue;
        n_opened++;
        sum += read_everything(g, copy, len);
        gguf_close(g);
        open_model(copy, len, NULL);
    }
    assert_true(sum > 0 && n_opened > ROUNDS / 10 && n_opened < ROUNDS);
    free(copy);
    free(bytes);
    maker_destroy(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hostile_counts_types_dimensions_and_offsets_are_refused),
        cmocka_unit_test(hostile_tensor_types_are_refused),
        cmocka_unit_test(hostile_dimensions_whose_product_overflows_are_refused),
        cmocka_unit_test(hostile_alignments_are_refused),
        cmocka_unit_test(hostile_small_file_that_asks_for_much_gets_little),
        cmocka_unit_test(hostile_every_prefix_of_a_small_file_is_refused),
        cmocka_unit_test(hostile_prefixes_of_a_real_file_are_refused),
        cmocka_unit_test(hostile_tensors_outside_the_file_are_refused),
        cmocka_unit_test(hostile_overlapping_and_misaligned_tensors_are_refused),
        cmocka_unit_test(hostile_duplicates_are_refused_with_both_places),
        cmocka_unit_test(hostile_header_is_refused_by_field),
        cmocka_unit_test(hostile_values_are_refused_by_field),
        cmocka_unit_test(hostile_names_reach_no_log_as_control_characters),
        cmocka_unit_test(hostile_largest_tables_are_read_in_time_and_memory),
        cmocka_unit_test(hostile_random_changes_never_reach_outside_the_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
