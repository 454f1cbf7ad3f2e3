#define PCRE2_CODE_UNIT_WIDTH 8
#include "common/text/pretokenizer.h"

#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/check.h"

enum {
    MAX_PASSES = 4,
    SEARCH_BYTES = 64 << 10,  /* an unanchored search that finds nothing comes up for air after so many bytes */
    JIT_STACK_BYTES = 512 << 10,
};

/* White space is Unicode's property, as in the engines that the models were made with; PCRE2's \s also takes U+180E. */
#define SP "\\p{White_Space}"
#define NOT_SP "\\P{White_Space}"
#define GPT2                                                                                                           \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^" SP "\\p{L}\\p{N}]+|" SP "+(?!" NOT_SP ")|" SP "+"
#define WORDS(digits)                                                                                                  \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits "| ?[^" SP "\\p{L}\\p{N}]+[\\r\\n]*"          \
    "|" SP "*[\\r\\n]+|" SP "+(?!" NOT_SP ")|" SP "+"

struct rule {
    const char *name;
    int whole_words, adds_bos;
    const char *pattern[MAX_PASSES];
};

/* As the models' own tokenizer.json files and llama.cpp have them; "default" is llama.cpp's. */
static const struct rule rules[] = {
    {"smollm", 0, 0, {"\\p{N}", GPT2}},
    {"gpt-2", 0, 0, {GPT2}},
    {"qwen2", 0, 0, {WORDS("\\p{N}")}},
    {"llama-bpe", 1, 1, {WORDS("\\p{N}{1,3}")}},
    {"default", 0, 0, {"[\\p{P}\\$\\+<=>\\^~\\|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}},
};

struct pretokenizer {
    const struct rule *rule;
    unsigned n_passes;
    pcre2_code *code[MAX_PASSES];
};

struct pretokenizer_scratch {
    pcre2_match_data *match;
    pcre2_match_context *context;
    pcre2_jit_stack *stack; /* NULL where PCRE2 has no JIT: the interpreter answers the same */
};

static const struct rule *find_rule(struct text name)
{
    for (size_t i = 0; i < ARRAY_LEN(rules); i++)
        if (strlen(rules[i].name) == name.len && memcmp(rules[i].name, name.data, name.len) == 0)
            return &rules[i];
    return NULL;
}

static enum status refuse_name(struct text name, struct error *err)
{
    char known[160] = "";
    size_t at = 0;
    for (size_t i = 0; i < ARRAY_LEN(rules); i++)
        at += (size_t)snprintf(known + at, sizeof known - at, "%s%s", i ? ", " : "", rules[i].name);
    int len = name.len > 60 ? 60 : (int)name.len;
    return error_set(err, STATUS_BAD_MODEL, "tokenizer.ggml.pre \"%.*s\" is not supported (supported: %s)", len, name.data,
                     known);
}

static enum status compile(const char *pattern, pcre2_code **out, struct error *err)
{
    int code;
    PCRE2_SIZE at;
    uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_NO_UTF_CHECK | PCRE2_USE_OFFSET_LIMIT;
    pcre2_code *c = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, options, &code, &at, NULL);
    if (!c)
        return error_set(err, STATUS_INTERNAL, "pre-tokenizer pattern: PCRE2 error %d at %zu", code, (size_t)at);
    pcre2_jit_compile(c, PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD);
    *out = c;
    return STATUS_OK;
}

enum status pretokenizer_create(struct text name, struct pretokenizer **out, struct error *err)
{
    const struct rule *rule = find_rule(name);
    if (!rule)
        return refuse_name(name, err);
    struct pretokenizer *p = calloc(1, sizeof *p);
    if (!p)
        return error_set(err, STATUS_OUT_OF_MEMORY, "no memory for the pre-tokenizer");
    p->rule = rule;
    for (unsigned i = 0; i < MAX_PASSES && rule->pattern[i]; i++) {
        enum status s = compile(rule->pattern[i], &p->code[i], err);
        if (s != STATUS_OK) {
            pretokenizer_destroy(p);
            return s;
        }
        p->n_passes++;
    }
    *out = p;
    return STATUS_OK;
}

void pretokenizer_destroy(struct pretokenizer *p)
{
    if (!p)
        return;
    for (unsigned i = 0; i < p->n_passes; i++)
        pcre2_code_free(p->code[i]);
    free(p);
}

int pretokenizer_whole_words(const struct pretokenizer *p)
{
    return p->rule->whole_words;
}

int pretokenizer_adds_bos(const struct pretokenizer *p)
{
    return p->rule->adds_bos;
}

struct pretokenizer_scratch *pretokenizer_scratch_create(void)
{
    struct pretokenizer_scratch *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->match = pcre2_match_data_create(1, NULL);
    s->context = pcre2_match_context_create(NULL);
    if (!s->match || !s->context) {
        pretokenizer_scratch_destroy(s);
        return NULL;
    }
    /* A run of spaces counts one try for each; the patterns have no nested repeats, so nothing explodes. */
    pcre2_set_match_limit(s->context, UINT32_MAX);
    pcre2_set_depth_limit(s->context, UINT32_MAX);
    s->stack = pcre2_jit_stack_create(32 << 10, JIT_STACK_BYTES, NULL);
    if (s->stack)
        pcre2_jit_stack_assign(s->context, NULL, s->stack);
    return s;
}

void pretokenizer_scratch_destroy(struct pretokenizer_scratch *s)
{
    if (!s)
        return;
    pcre2_jit_stack_free(s->stack);
    pcre2_match_context_free(s->context);
    pcre2_match_data_free(s->match);
    free(s);
}

struct splitter {
    const struct pretokenizer *p;
    struct pretokenizer_scratch *scratch;
    struct work *work;
    pretokenizer_sink sink;
    void *context;
};

static size_t back_to_character(const char *text, size_t at)
{
    while (((unsigned char)text[at] & 0xc0) == 0x80)
        at--;
    return at;
}

static enum status too_long(struct splitter *sp)
{
    return error_param(sp->work->err, STATUS_BAD_REQUEST, NULL, "word_too_long",
                       "the text has a run of more than %d bytes without a word boundary", PRETOKENIZER_MAX_WORD);
}

/* The first match that starts in [from, *searched): found 1 and its place. Only a window is shown to PCRE2, so that one
 * call is short whatever the text; a match that wants to look past the window is one longer than a word may be. */
static enum status find(struct splitter *sp, const pcre2_code *code, const char *text, size_t len, size_t from,
                        size_t *searched, int *found, size_t *start, size_t *end)
{
    size_t limit = len - from > SEARCH_BYTES ? back_to_character(text, from + SEARCH_BYTES) : len;
    size_t window = len, enough = (size_t)SEARCH_BYTES + PRETOKENIZER_MAX_WORD + 8;
    if (len - from > enough)
        window = back_to_character(text, from + enough);
    uint32_t options = PCRE2_NO_UTF_CHECK | (window < len ? PCRE2_PARTIAL_HARD : 0);
    pcre2_set_offset_limit(sp->scratch->context, limit < len ? limit - 1 : PCRE2_UNSET);
    int rc = pcre2_match(code, (PCRE2_SPTR)text, window, from, options, sp->scratch->match, sp->scratch->context);
    *searched = limit;
    *found = rc > 0;
    if (rc == PCRE2_ERROR_PARTIAL)
        return too_long(sp);
    if (rc == PCRE2_ERROR_NOMATCH)
        return STATUS_OK;
    if (rc <= 0)
        return error_set(sp->work->err, STATUS_INTERNAL, "pre-tokenizer: PCRE2 error %d", rc);
    const PCRE2_SIZE *at = pcre2_get_ovector_pointer(sp->scratch->match);
    *start = at[0];
    *end = at[1];
    return STATUS_OK;
}

static enum status split(struct splitter *sp, unsigned pass, const char *text, size_t len);

static enum status piece(struct splitter *sp, unsigned pass, const char *text, size_t len)
{
    if (len == 0)
        return STATUS_OK;
    if (pass < sp->p->n_passes)
        return split(sp, pass, text, len);
    if (len > PRETOKENIZER_MAX_WORD)
        return too_long(sp);
    return sp->sink(sp->context, text, len);
}

static enum status split(struct splitter *sp, unsigned pass, const char *text, size_t len)
{
    size_t gap = 0, from = 0; /* text[gap, from) has been searched and matched nothing */
    while (from < len) {
        size_t searched, start, end;
        int found;
        TRY(work_step(sp->work, 1));
        TRY(find(sp, sp->p->code[pass], text, len, from, &searched, &found, &start, &end));
        if (!found) {
            TRY(work_step(sp->work, (searched - from) / 64));
            from = searched;
            continue;
        }
        TRY(work_step(sp->work, (end - from) / 64));
        TRY(piece(sp, pass + 1, text + gap, start - gap));
        TRY(piece(sp, pass + 1, text + start, end - start));
        gap = from = end;
    }
    return piece(sp, pass + 1, text + gap, len - gap);
}

enum status pretokenizer_split(const struct pretokenizer *p, struct pretokenizer_scratch *s, const char *text, size_t len,
                               struct work *work, pretokenizer_sink sink, void *context)
{
    struct splitter sp = {.p = p, .scratch = s, .work = work, .sink = sink, .context = context};
    return piece(&sp, 0, text, len);
}
