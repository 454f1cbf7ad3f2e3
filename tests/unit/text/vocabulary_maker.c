#include "vocabulary_maker.h"

#include <string.h>

#include "common/base/utf8.h"

enum { TYPE_U32 = 4, TYPE_I32 = 5, TYPE_F32 = 6, TYPE_BOOL = 7, TYPE_TEXT = 8, TYPE_ARRAY = 9, AT_N_KEYS = 16 };

static void put(struct vocabulary_maker *m, uint64_t v, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++, v >>= 8)
        buf_append(&m->bytes, &(char){(char)(v & 255)}, 1);
}

static void put_text(struct vocabulary_maker *m, const char *text, size_t len)
{
    put(m, len, 8);
    buf_append(&m->bytes, text, len);
}

static void put_key(struct vocabulary_maker *m, const char *key, unsigned type)
{
    put_text(m, key, strlen(key));
    put(m, type, 4);
    m->n_keys++;
}

void vocabulary_maker_init(struct vocabulary_maker *m)
{
    *m = (struct vocabulary_maker){.n_keys = 0};
    buf_init(&m->bytes, 64 << 20);
    buf_text(&m->bytes, "GGUF");
    put(m, 3, 4);
    put(m, 0, 8); /* tensors */
    put(m, 0, 8); /* keys, at AT_N_KEYS */
    vocabulary_maker_text(m, "general.architecture", "llama");
}

void vocabulary_maker_fini(struct vocabulary_maker *m)
{
    buf_fini(&m->bytes);
}

void vocabulary_maker_text(struct vocabulary_maker *m, const char *key, const char *value)
{
    put_key(m, key, TYPE_TEXT);
    put_text(m, value, strlen(value));
}

void vocabulary_maker_u32(struct vocabulary_maker *m, const char *key, uint32_t value)
{
    put_key(m, key, TYPE_U32);
    put(m, value, 4);
}

void vocabulary_maker_i32(struct vocabulary_maker *m, const char *key, int32_t value)
{
    put_key(m, key, TYPE_I32);
    put(m, (uint32_t)value, 4);
}

void vocabulary_maker_bool(struct vocabulary_maker *m, const char *key, int value)
{
    put_key(m, key, TYPE_BOOL);
    put(m, value != 0, 1);
}

void vocabulary_maker_texts(struct vocabulary_maker *m, const char *key, const struct text *texts, uint64_t n)
{
    put_key(m, key, TYPE_ARRAY);
    put(m, TYPE_TEXT, 4);
    put(m, n, 8);
    for (uint64_t i = 0; i < n; i++)
        put_text(m, texts[i].data, texts[i].len);
}

void vocabulary_maker_ints(struct vocabulary_maker *m, const char *key, const int32_t *ints, uint64_t n)
{
    put_key(m, key, TYPE_ARRAY);
    put(m, TYPE_I32, 4);
    put(m, n, 8);
    for (uint64_t i = 0; i < n; i++)
        put(m, (uint32_t)ints[i], 4);
}

void vocabulary_maker_floats(struct vocabulary_maker *m, const char *key, const float *floats, uint64_t n)
{
    put_key(m, key, TYPE_ARRAY);
    put(m, TYPE_F32, 4);
    put(m, n, 8);
    for (uint64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &floats[i], 4);
        put(m, bits, 4);
    }
}

const void *vocabulary_maker_bytes(struct vocabulary_maker *m, size_t *len)
{
    for (int i = 0; i < 8; i++)
        m->bytes.data[AT_N_KEYS + i] = (char)(m->n_keys >> 8 * i & 255);
    *len = m->bytes.len;
    return m->bytes.data;
}

void vocabulary_maker_symbols(struct text texts[256])
{
    static char room[256][4];
    uint32_t next = 256;
    for (uint32_t b = 0; b < 256; b++) {
        int printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        texts[b] = (struct text){room[b], utf8_encode(printable ? b : next++, room[b])};
    }
}
