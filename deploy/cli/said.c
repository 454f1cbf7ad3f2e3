#include "deploy/cli/said.h"

#include <stdio.h>
#include <string.h>

#include "common/base/utf8.h"

size_t said_unfit(const char *p)
{
    uint32_t c;
    if (!*p)
        return 0;
    unsigned n = utf8_decode(p, strnlen(p, 4), &c);
    return n == 0 ? 1 : utf8_is_control(c) ? n : 0;
}

void said_make_plain(char *text)
{
    while (*text) {
        uint32_t c;
        size_t unfit = said_unfit(text), n = unfit ? unfit : utf8_decode(text, strnlen(text, 4), &c);
        for (size_t i = 0; i < unfit; i++)
            text[i] = '?';
        text += n;
    }
}

struct said said_plain(const char *text)
{
    struct said out;
    snprintf(out.text, sizeof out.text, "%s", text);
    said_make_plain(out.text);
    return out;
}

struct said said_text(const json_t *v, int most)
{
    struct said out;
    const char *text = json_string_value(v);
    snprintf(out.text, sizeof out.text, "%.*s", most, text ? text : "-");
    said_make_plain(out.text);
    return out;
}

int64_t said_whole(const json_t *v, int64_t min, int64_t max)
{
    if (json_is_integer(v)) {
        json_int_t n = json_integer_value(v);
        return n < min ? min : n > max ? max : n;
    }
    double d = json_number_value(v); /* JSON has no NaN */
    return d <= (double)min ? min : d >= (double)max ? max : (int64_t)d;
}
