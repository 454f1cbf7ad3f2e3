#include "tests/lib/fake_script.h"

#include <ctype.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/check.h"
#include "tests/lib/fake_compute.h"

/* Who reads. */
struct reader {
    uint32_t stage, life;
};

void fake_script_defaults(struct fake_script *s)
{
    *s = (struct fake_script){.width = 16};
}

void fake_script_free(struct fake_script *s)
{
    free(s->answer);
    s->answer = NULL;
}

void fake_script_file(const char *text, char path[FAKE_SCRIPT_PATH])
{
    snprintf(path, FAKE_SCRIPT_PATH, "/tmp/sluice-script-XXXXXX");
    int fd = mkstemp(path);
    CHECK(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    close(fd);
}

/* Takes the next word off *text; "" at the end. */
static char *word(char **text)
{
    char *p = *text;
    while (isspace((unsigned char)*p))
        p++;
    char *start = p;
    while (*p && !isspace((unsigned char)*p))
        p++;
    if (*p)
        *p++ = 0;
    *text = p;
    return start;
}

static int number(char **text, int64_t min, int64_t max, int64_t *out)
{
    char *w = word(text), *end;
    errno = 0;
    long long v = strtoll(w, &end, 10);
    if (!*w || *end || errno || v < min || v > max)
        return 0;
    *out = v;
    return 1;
}

static int status_by_name(const char *name, int64_t *out)
{
#define X(status_name_, code, http, grpc, retry, type, text)                                                           \
    if (strcmp(name, #status_name_) == 0) {                                                                            \
        *out = (code);                                                                                                 \
        return 1;                                                                                                      \
    }
    STATUS_MAP(X)
#undef X
    return 0;
}

static int hex(char c)
{
    return isdigit((unsigned char)c) ? c - '0' : isxdigit((unsigned char)c) ? tolower((unsigned char)c) - 'a' + 10 : -1;
}

static int push_id(struct fake_script *s, int32_t id)
{
    if (!s->answer && !(s->answer = calloc(FAKE_MAX_ANSWER, sizeof *s->answer)))
        return 0;
    if (s->n_answer == FAKE_MAX_ANSWER)
        return 0;
    s->answer[s->n_answer++] = id;
    return 1;
}

/* The rest of the line as bytes; \n, \t, \\ and \xNN are understood. */
static int text_answer(struct fake_script *s, const char *p)
{
    while (isspace((unsigned char)*p))
        p++;
    for (; *p; p++) {
        int byte = (unsigned char)*p;
        if (*p == '\\') {
            p++;
            if (*p == 'x' && hex(p[1]) >= 0 && hex(p[2]) >= 0) {
                byte = hex(p[1]) * 16 + hex(p[2]);
                p += 2;
            } else if (*p == 'n' || *p == 't' || *p == '\\') {
                byte = *p == 'n' ? '\n' : *p == 't' ? '\t' : '\\';
            } else {
                return 0;
            }
        }
        if (!push_id(s, FAKE_FIRST_BYTE + byte))
            return 0;
    }
    return s->n_answer > 0;
}

static int ids_answer(struct fake_script *s, char *rest)
{
    for (int64_t id; *rest;) {
        if (!number(&rest, 0, INT32_MAX, &id))
            return 0;
        if (!push_id(s, (int32_t)id))
            return 0;
        while (isspace((unsigned char)*rest))
            rest++;
    }
    return s->n_answer > 0;
}

/* Leaves *out where the line has ended. */
static int optional_signal(char *rest, int64_t *out)
{
    while (isspace((unsigned char)*rest))
        rest++;
    return !*rest || number(&rest, 1, 64, out);
}

static int poison(struct fake_script *s, char *rest)
{
    int64_t id, signal_number = SIGSEGV;
    if (!number(&rest, 0, INT32_MAX, &id) || !optional_signal(rest, &signal_number))
        return 0;
    s->poison_id = (uint32_t)id;
    s->poison_signal = (int)signal_number;
    return 1;
}

static int event(struct fake_script *s, enum fake_event_kind kind, char *rest)
{
    int64_t tick, value = 0;
    if (s->n_events == FAKE_MAX_EVENTS || !number(&rest, 1, INT64_MAX, &tick))
        return 0;
    if (kind == FAKE_FAIL || kind == FAKE_FAIL_FROM) {
        if (!status_by_name(word(&rest), &value) || value == 0)
            return 0;
    } else if (kind == FAKE_SLEEP || kind == FAKE_SLOW) {
        if (!number(&rest, 0, 3600000, &value))
            return 0;
    } else if (kind == FAKE_CRASH) {
        value = SIGKILL;
        if (!optional_signal(rest, &value))
            return 0;
    }
    s->events[s->n_events++] = (struct fake_event){.kind = kind, .tick = (uint64_t)tick, .value = value};
    return 1;
}

static int setting(struct fake_script *s, const char *name, char *rest)
{
    const struct {
        const char *name;
        uint32_t *value;
        int64_t min, max;
    } numbers[] = {
        {"tick_us", &s->tick_us, 0, 60000000}, {"row_us", &s->row_us, 0, 60000000}, {"token_us", &s->token_us, 0, 60000000},
        {"load_ms", &s->load_ms, 0, 3600000},  {"width", &s->width, 4, 65536},      {"end_after", &s->end_after, 0, INT32_MAX},
        {"answer_at", &s->answer_at, 0, INT32_MAX},
        {"start_ms", &s->start_ms, 0, 3600000},
    };
    for (unsigned i = 0; i < ARRAY_LEN(numbers); i++)
        if (strcmp(name, numbers[i].name) == 0) {
            int64_t v;
            if (!number(&rest, numbers[i].min, numbers[i].max, &v))
                return 0;
            *numbers[i].value = (uint32_t)v;
            return 1;
        }
    const struct {
        const char *name;
        enum fake_event_kind kind;
    } events[] = {{"fail_tick", FAKE_FAIL},
                  {"fail_from", FAKE_FAIL_FROM},
                  {"sleep_tick", FAKE_SLEEP},
                  {"slow_tick", FAKE_SLOW},
                  {"bad_logits_tick", FAKE_BAD_LOGITS},
                  {"crash_tick", FAKE_CRASH}};
    for (unsigned i = 0; i < ARRAY_LEN(events); i++)
        if (strcmp(name, events[i].name) == 0)
            return event(s, events[i].kind, rest);
    if (strcmp(name, "poison") == 0)
        return poison(s, rest);
    if (strcmp(name, "text") == 0)
        return text_answer(s, rest);
    if (strcmp(name, "ids") == 0)
        return ids_answer(s, rest);
    if (strcmp(name, "repeat") == 0) {
        const char *w = word(&rest);
        s->repeat = strcmp(w, "on") == 0;
        return s->repeat || strcmp(w, "off") == 0;
    }
    return 0;
}

/* Takes `stage I` or `life N` off a line; *mine: whether what follows is for the one that it says. */
static int condition(char **name, char **rest, const char *word_of_it, uint32_t own, int *mine)
{
    int64_t which;
    if (strcmp(*name, word_of_it) != 0)
        return 1;
    if (!number(rest, 0, INT32_MAX, &which))
        return 0;
    *mine &= which == own;
    *name = word(rest);
    return 1;
}

static enum status read_line(struct fake_script *s, char *line, const struct reader *r, const char *path, int n, struct error *err)
{
    line[strcspn(line, "\r\n")] = 0;
    char *rest = line, *name = word(&rest);
    int mine = 1, ok = 1;
    if (!*name || *name == '#')
        return STATUS_OK;
    ok = condition(&name, &rest, "stage", r->stage, &mine) && condition(&name, &rest, "life", r->life, &mine);
    if (ok && (!mine || setting(s, name, rest)))
        return STATUS_OK;
    return error_set(err, STATUS_CONFIG, "--script %.200s:%d: '%.40s' is no line of a script (tests/lib/README.md)", path, n, name);
}

static enum status read_file(struct fake_script *s, const char *path, const struct reader *r, struct error *err)
{
    FILE *f = fopen(path, "r");
    if (!f)
        return error_set(err, STATUS_CONFIG, "--script %.200s: %s", path, strerror(errno));
    char *line = NULL;
    size_t size = 0;
    enum status result = STATUS_OK;
    for (int n = 1; result == STATUS_OK && getline(&line, &size, f) >= 0; n++)
        result = read_line(s, line, r, path, n, err);
    free(line);
    fclose(f);
    return result;
}

enum status fake_script_read(const char *paths, uint32_t stage, uint32_t life, struct fake_script *out, struct error *err)
{
    const struct reader r = {stage, life};
    struct fake_script s;
    fake_script_defaults(&s);
    enum status result = STATUS_OK;
    for (const char *p = paths; p && *p && result == STATUS_OK;) {
        char path[4096];
        size_t n = strcspn(p, ",");
        snprintf(path, sizeof path, "%.*s", (int)n, p);
        result = n < sizeof path ? read_file(&s, path, &r, err) : error_set(err, STATUS_CONFIG, "--script: a path is too long");
        p += n + (p[n] == ',');
    }
    if (result == STATUS_OK)
        *out = s;
    else
        fake_script_free(&s);
    return result;
}
