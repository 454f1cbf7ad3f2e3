#include "common/text/chat_mark.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/check.h"
#include "common/text/tokenizer.h"
#include "common/base/utf8.h"

enum { MARK_BYTES = sizeof TOKENIZER_MARK - 1 };

size_t chat_mark_remove(char *text, size_t len)
{
    size_t kept = 0;
    for (size_t at = 0; at < len;) {
        const char *mark = memmem(text + at, len - at, TOKENIZER_MARK, MARK_BYTES);
        size_t n = mark ? (size_t)(mark - text) - at : len - at;
        memmove(text + kept, text + at, n);
        kept += n;
        at += n + (mark ? MARK_BYTES : 0);
    }
    return kept;
}

/* What Python's str.strip() takes away. */
static int is_blank(uint32_t cp)
{
    return (cp >= 0x09 && cp <= 0x0d) || (cp >= 0x1c && cp <= 0x20) || cp == 0x85 || cp == 0xa0 || cp == 0x1680 ||
           (cp >= 0x2000 && cp <= 0x200a) || cp == 0x2028 || cp == 0x2029 || cp == 0x202f || cp == 0x205f || cp == 0x3000;
}

static size_t without_blanks_at_end(const char *text, size_t len)
{
    while (len) {
        size_t at = len - 1;
        uint32_t cp;
        while (at && ((unsigned char)text[at] & 0xc0) == 0x80)
            at--;
        if (utf8_decode(text + at, len - at, &cp) != len - at || !is_blank(cp))
            break;
        len = at;
    }
    return len;
}

/* text has no marks. */
static enum status mark_clean(const struct special *s, const char *text, size_t len, struct buf *out)
{
    size_t trim = without_blanks_at_end(text, len), done = 0;
    for (size_t i = 0; i < len; i++) {
        if (s->first[(unsigned char)text[i]] == s->first[(unsigned char)text[i] + 1])
            continue;
        if (!special_control_starts(s, text + i, i < trim ? trim - i : len - i, len - i))
            continue;
        TRY(buf_append(out, text + done, i - done));
        TRY(buf_append(out, TOKENIZER_MARK, MARK_BYTES));
        done = i;
    }
    return buf_append(out, text + done, len - done);
}

enum status chat_mark_text(const struct special *s, const char *text, size_t len, struct buf *out)
{
    if (len < MARK_BYTES || !memmem(text, len, TOKENIZER_MARK, MARK_BYTES))
        return mark_clean(s, text, len, out);
    char *clean = malloc(len);
    if (!clean)
        return STATUS_OUT_OF_MEMORY;
    memcpy(clean, text, len);
    enum status status = mark_clean(s, clean, chat_mark_remove(clean, len), out);
    free(clean);
    return status;
}

struct scanner {
    const char *json;
    size_t len, at;
    struct error *err;
};

static enum status bad_json(const struct scanner *in, const char *what)
{
    return error_set(in->err, STATUS_BAD_REQUEST, "the template's context is no JSON: %s at byte %zu", what, in->at);
}

/* Four hex digits at `at`, or -1. */
static int32_t hex4(const struct scanner *in, size_t at)
{
    int32_t v = 0;
    if (in->len < 4 || at > in->len - 4)
        return -1;
    for (size_t i = at; i < at + 4; i++) {
        char c = in->json[i];
        int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
        if (digit < 0)
            return -1;
        v = v * 16 + digit;
    }
    return v;
}

/* The code point of \uXXXX or of a surrogate pair behind at, which stands on the u. */
static enum status read_unicode(struct scanner *in, struct buf *out)
{
    int32_t high = hex4(in, in->at + 1), low = -1;
    in->at += 5;
    if (high < 0 || (high >= 0xdc00 && high <= 0xdfff))
        return bad_json(in, "no character");
    uint32_t cp = (uint32_t)high;
    if (high >= 0xd800 && high <= 0xdbff) {
        if (in->len - in->at >= 6 && in->json[in->at] == '\\' && in->json[in->at + 1] == 'u')
            low = hex4(in, in->at + 2);
        if (low < 0xdc00 || low > 0xdfff)
            return bad_json(in, "half a surrogate pair");
        in->at += 6;
        cp = 0x10000 + ((uint32_t)(high & 0x3ff) << 10 | (uint32_t)(low & 0x3ff));
    }
    char utf8[4];
    return buf_append(out, utf8, utf8_encode(cp, utf8));
}

static enum status read_escape(struct scanner *in, struct buf *out)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    char c = in->at < in->len ? in->json[in->at] : 0;
    if (c == 'u')
        return read_unicode(in, out);
    const char *known = c ? strchr(from, c) : NULL;
    if (!known)
        return bad_json(in, "an unknown escape");
    in->at++;
    return buf_append(out, &to[known - from], 1);
}

/* From behind the opening quote to behind the closing one. */
static enum status read_string(struct scanner *in, struct buf *out)
{
    for (;;) {
        size_t start = in->at;
        while (in->at < in->len && in->json[in->at] != '"' && in->json[in->at] != '\\')
            in->at++;
        TRY(buf_append(out, in->json + start, in->at - start));
        if (in->at == in->len)
            return bad_json(in, "an open string");
        if (in->json[in->at++] == '"')
            break;
        TRY(read_escape(in, out));
    }
    return utf8_valid_len(out->data, out->len) == out->len ? STATUS_OK : bad_json(in, "a string that is not UTF-8");
}

static enum status write_string(const char *text, size_t len, struct buf *out)
{
    size_t done = 0;
    TRY(buf_append(out, "\"", 1));
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c >= 0x20 && c != '"' && c != '\\')
            continue;
        TRY(buf_append(out, text + done, i - done));
        TRY(c >= 0x20 ? buf_printf(out, "\\%c", c) : buf_printf(out, "\\u%04x", c));
        done = i + 1;
    }
    TRY(buf_append(out, text + done, len - done));
    return buf_append(out, "\"", 1);
}

/* Keys that templates look up by name, and roles that they compare: a control token that could start in one ("t" in "content")
 * must not rename it. Whoever prints such a word, the template's author chose it and no user did. */
static int is_fixed(const char *text, size_t len, int is_role)
{
    static const char *const keys[] = {"messages", "role", "content", "name", "tool_calls", "tool_call_id", "id", "type",
                                       "function", "arguments", "tools", "parameters", "description", "documents", "title",
                                       "text", "reasoning_content", "reasoning_effort", "enable_thinking", "add_generation_prompt"};
    static const char *const roles[] = {"system", "developer", "user", "assistant", "tool", "function"};
    const char *const *words = is_role ? roles : keys;
    for (size_t i = 0; i < (is_role ? ARRAY_LEN(roles) : ARRAY_LEN(keys)); i++)
        if (strlen(words[i]) == len && memcmp(words[i], text, len) == 0)
            return 1;
    return 0;
}

/* Behind a string: it is the key of a member. */
static int is_key(const struct scanner *in)
{
    size_t at = in->at;
    while (at < in->len && memchr(" \t\r\n", in->json[at], 4))
        at++;
    return at < in->len && in->json[at] == ':';
}

/* Strings are rewritten, everything between them is copied: numbers stay as they are, and whether the whole is JSON is
 * for the one who reads it. Outside strings JSON has no quotes, so both see the same strings. */
static enum status rewrite(const struct special *s, struct scanner *in, struct buf *text, struct buf *marked, struct buf *out)
{
    int of_role = 0; /* the string before was the key "role" */
    while (in->at < in->len) {
        const char *quote = memchr(in->json + in->at, '"', in->len - in->at);
        size_t n = quote ? (size_t)(quote - in->json) - in->at : in->len - in->at;
        TRY(buf_append(out, in->json + in->at, n));
        in->at += n;
        if (!quote)
            break;
        in->at++;
        buf_clear(text);
        buf_clear(marked);
        TRY(buf_text(text, ""));
        TRY(read_string(in, text));
        int key = is_key(in), fixed = (key || of_role) && is_fixed(text->data, text->len, !key);
        of_role = key && text->len == 4 && memcmp(text->data, "role", 4) == 0;
        if (!fixed)
            TRY(chat_mark_text(s, text->data, text->len, marked));
        const struct buf *written = fixed ? text : marked;
        TRY(write_string(written->data, written->len, out));
    }
    return STATUS_OK;
}

enum status chat_mark_json(const struct special *s, const char *json, size_t len, struct buf *out, struct error *err)
{
    struct scanner in = {.json = json, .len = len, .err = err};
    struct buf text, marked;
    buf_init(&text, SIZE_MAX / 2);
    buf_init(&marked, SIZE_MAX / 2);
    enum status status = rewrite(s, &in, &text, &marked, out);
    buf_fini(&text);
    buf_fini(&marked);
    return status == STATUS_OUT_OF_MEMORY ? error_set(err, status, "no memory for the template's context") : status;
}
