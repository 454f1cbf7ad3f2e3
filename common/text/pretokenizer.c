#define PCRE2_CODE_UNIT_WIDTH 8
#include "common/text/pretokenizer_impl.h"

#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/check.h"

enum {
    MAX_PASSES = 6,
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

/* Letters of tekken by case; those without one, and marks, are in both. */
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define TEKKEN                                                                                                         \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*|\\p{N}"                      \
    "| ?[^" SP "\\p{L}\\p{N}]+[\\r\\n/]*|" SP "*[\\r\\n]+|" SP "+(?!" NOT_SP ")|" SP "+"
/* deepseek's classes, as its tokenizer.json has them: most letters with a case, signs of ASCII (and the letters between
 * them) and their wide forms, and everything from U+0800 up to the end of Hangul but what lies between U+9FA5 and U+AC00. */
#define CASED_LETTERS                                                                                                  \
    "A-Za-z\\x{b5}\\x{c0}-\\x{d6}\\x{d8}-\\x{f6}\\x{f8}-\\x{1ba}\\x{1bc}-\\x{1bf}\\x{1c4}-\\x{293}"                    \
    "\\x{295}-\\x{2af}\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37b}-\\x{37d}\\x{37f}\\x{386}"                              \
    "\\x{388}-\\x{38a}\\x{38c}\\x{38e}-\\x{3a1}\\x{3a3}-\\x{3f5}\\x{3f7}-\\x{481}\\x{48a}-\\x{52f}"                    \
    "\\x{531}-\\x{556}\\x{10a0}-\\x{10c5}\\x{13a0}-\\x{13f5}\\x{13f8}-\\x{13fd}\\x{1c90}-\\x{1cba}"                    \
    "\\x{1cbd}-\\x{1cbf}\\x{1d00}-\\x{1d2b}\\x{1d6b}-\\x{1d77}\\x{1d79}-\\x{1d9a}\\x{1e00}-\\x{1f15}"                  \
    "\\x{1f18}-\\x{1f1d}\\x{1f20}-\\x{1f45}\\x{1f48}-\\x{1f4d}\\x{1f50}-\\x{1f57}\\x{1f59}\\x{1f5b}"                   \
    "\\x{1f5d}\\x{1f5f}-\\x{1f7d}\\x{1f80}-\\x{1fb4}\\x{1fb6}-\\x{1fbc}\\x{1fbe}\\x{1fc2}-\\x{1fc4}"                   \
    "\\x{1fc6}-\\x{1fcc}\\x{1fd0}-\\x{1fd3}\\x{1fd6}-\\x{1fdb}\\x{1fe0}-\\x{1fec}\\x{1ff2}-\\x{1ff4}"                  \
    "\\x{1ff6}-\\x{1ffc}\\x{2102}\\x{2107}\\x{210a}-\\x{2113}\\x{2115}\\x{2119}-\\x{211d}\\x{2124}"                    \
    "\\x{2126}\\x{2128}\\x{212a}-\\x{212d}\\x{212f}-\\x{2134}\\x{2139}\\x{213c}-\\x{213f}"                             \
    "\\x{2145}-\\x{2149}\\x{214e}\\x{2183}\\x{2184}\\x{2c00}-\\x{2c7b}\\x{2c7e}-\\x{2ce4}"                             \
    "\\x{2ceb}-\\x{2cee}\\x{2cf2}\\x{2cf3}\\x{a640}-\\x{a66d}\\x{a680}-\\x{a69b}\\x{a722}-\\x{a76f}"                   \
    "\\x{a771}-\\x{a787}\\x{a78b}-\\x{a78e}\\x{ab70}-\\x{abbf}\\x{fb00}-\\x{fb06}\\x{fb13}-\\x{fb17}"                  \
    "\\x{ff21}-\\x{ff3a}\\x{ff41}-\\x{ff5a}\\x{10400}-\\x{1044f}\\x{104b0}-\\x{104d3}"                                 \
    "\\x{104d8}-\\x{104fb}\\x{10c80}-\\x{10cb2}\\x{10cc0}-\\x{10cf2}\\x{118a0}-\\x{118df}"                             \
    "\\x{1e900}-\\x{1e943}"
#define CJK "[\\x{4e00}-\\x{9fa5}\\x{800}-\\x{4e00}\\x{ac00}-\\x{d7ff}]+"
#define DEEPSEEK_SIGNS "[!-/:-~\\x{ff01}-\\x{ff0f}\\x{ff1a}-\\x{ff5e}\\x{2018}-\\x{201f}\\x{3000}-\\x{3002}]+"
/* "\s+$", looked for only where white space begins: else a long run that does not end the piece would be read anew from each
 * of its places. Line ends are pieces of their own before. */
#define SP_AT_END "(?<!" SP ")" SP "++\\z"

struct rule {
    const char *name;
    int whole_words, adds_bos;
    const char *pattern[MAX_PASSES];
};

/* As the models' own tokenizer.json files have them, with llama.cpp's names and habits; "default" is llama.cpp's. */
static const struct rule rules[] = {
    {"smollm", 0, 0, {"\\p{N}", GPT2}},
    {"gpt-2", 0, 0, {GPT2}},
    {"qwen2", 0, 0, {WORDS("\\p{N}")}},
    {"llama-bpe", 1, 1, {WORDS("\\p{N}{1,3}")}},
    {"dbrx", 0, 0, {WORDS("\\p{N}{1,3}")}},
    {"glm4", 1, 0, {WORDS("\\p{N}{1,3}")}},
    {"tekken", 1, 1, {TEKKEN}},
    {"deepseek-llm", 0, 0, {"[\\r\\n]", SP "?[" CASED_LETTERS "]+", SP "?" DEEPSEEK_SIGNS, SP_AT_END, CJK, "\\p{N}"}},
    {"deepseek-coder", 0, 0, {"[\\r\\n]", SP "?\\p{L}+", SP "?\\p{P}+", CJK, "\\p{N}"}},
    {"default", 0, 0, {"[\\p{P}\\$\\+<=>\\^~\\|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}},
};

/* Names that llama.cpp gives to vocabularies with the very same patterns and habits. */
static const struct {
    const char *name, *rule;
} aliases[] = {
    {"llama3", "llama-bpe"},      {"llama-v3", "llama-bpe"},   {"falcon3", "llama-bpe"},     {"falcon-h1", "llama-bpe"},
    {"pixtral", "llama-bpe"},     {"midm-2.0", "llama-bpe"},   {"lfm2", "llama-bpe"},        {"smaug-bpe", "dbrx"},
    {"glm5", "glm4"},             {"chatglm-bpe", "dbrx"},     {"deepseek-r1-qwen", "qwen2"}, {"stablelm2", "qwen2"},
    {"megrez", "qwen2"},          {"hunyuan", "qwen2"},        {"kormo", "qwen2"},           {"solar-open", "qwen2"},
    {"grok-2", "qwen2"},          {"phi-2", "gpt-2"},          {"mpt", "gpt-2"},             {"olmo", "gpt-2"},
    {"jais", "gpt-2"},            {"exaone4", "gpt-2"},        {"gigachat", "gpt-2"},        {"a.x-4.0", "gpt-2"},
    {"mellum", "gpt-2"},          {"trillion", "gpt-2"},       {"granite-docling", "gpt-2"}, {"starcoder", "smollm"},
    {"refact", "smollm"},         {"command-r", "smollm"},     {"codeshell", "smollm"},      {"exaone", "smollm"},
    {"minerva-7b", "smollm"},     {"mellum2", "smollm"},
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

static int is_called(const char *name, struct text t)
{
    return strlen(name) == t.len && memcmp(name, t.data, t.len) == 0;
}

static const struct rule *find_rule(struct text name)
{
    for (size_t i = 0; i < ARRAY_LEN(aliases); i++)
        if (is_called(aliases[i].name, name))
            name = (struct text){aliases[i].rule, strlen(aliases[i].rule)};
    for (size_t i = 0; i < ARRAY_LEN(rules); i++)
        if (is_called(rules[i].name, name))
            return &rules[i];
    return NULL;
}

static enum status refuse_name(struct text name, struct error *err)
{
    char known[160] = "";
    size_t at = 0;
    for (size_t i = 0; i < ARRAY_LEN(rules); i++)
        at += (size_t)snprintf(known + at, sizeof known - at, "%s%s", i ? ", " : "", rules[i].name);
    return error_set(err, STATUS_BAD_MODEL, "tokenizer.ggml.pre \"%s\" is not supported (supported: %s, and names of the same)",
                     gguf_printable(name).text, known);
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
    size_t search_bytes, max_word;
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
                       "the text has a run of more than %zu bytes without a word boundary", sp->max_word);
}

/* The first match that starts in [from, *searched): found 1 and its place. Only a window is shown to PCRE2, so that one
 * call is short whatever the text; a match that wants to look past the window is one longer than a word may be. */
static enum status find(struct splitter *sp, const pcre2_code *code, const char *text, size_t len, size_t from,
                        size_t *searched, int *found, size_t *start, size_t *end)
{
    size_t limit = len - from > sp->search_bytes ? back_to_character(text, from + sp->search_bytes) : len;
    size_t window = len, enough = sp->search_bytes + sp->max_word + 8;
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
    if (len > sp->max_word)
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

enum status pretokenizer__split_within(const struct pretokenizer *p, struct pretokenizer_scratch *s, const char *text, size_t len,
                                       size_t search_bytes, size_t max_word, struct work *work, pretokenizer_sink sink,
                                       void *context)
{
    struct splitter sp = {.p = p, .scratch = s, .search_bytes = search_bytes, .max_word = max_word, .work = work, .sink = sink,
                          .context = context};
    return piece(&sp, 0, text, len);
}

enum status pretokenizer_split(const struct pretokenizer *p, struct pretokenizer_scratch *s, const char *text, size_t len,
                               struct work *work, pretokenizer_sink sink, void *context)
{
    return pretokenizer__split_within(p, s, text, len, SEARCH_BYTES, PRETOKENIZER_MAX_WORD, work, sink, context);
}
