#include "deploy/cli/said.h"

#include <stdio.h>

size_t said_control(const char *p)
{
    const unsigned char *u = (const unsigned char *)p;
    if (*u && (*u < 0x20 || *u == 0x7f))
        return 1;
    return u[0] == 0xc2 && u[1] >= 0x80 && u[1] < 0xa0 ? 2 : 0;
}

void said_make_plain(char *text)
{
    while (*text) {
        size_t n = said_control(text);
        for (size_t i = 0; i < n; i++)
            text[i] = '?';
        text += n ? n : 1;
    }
}

struct said said_text(const json_t *v)
{
    struct said out;
    const char *text = json_string_value(v);
    snprintf(out.text, sizeof out.text, "%s", text ? text : "-");
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
