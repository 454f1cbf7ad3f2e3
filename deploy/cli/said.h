/* deploy/cli/said.h - what a server said, before a person sees it or it is counted with.
 *
 * Purpose    Texts and numbers of a server are its own affair: a text may steer the terminal, a number may be no count at all. This is
 *            the one place that knows what is let through.
 * Ownership  Nothing is kept.
 * Threading  Pure.
 * Errors     None: what cannot be shown is a '?', what is out of range is cut to it.
 */
#ifndef SLUICE_DEPLOY_CLI_SAID_H
#define SLUICE_DEPLOY_CLI_SAID_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes at p that are not shown: a control character, of C1 too, or a byte that begins no character of UTF-8. 0: p begins one, or is the end. */
size_t said_unfit(const char *p);
/* All of these become '?', ends of lines too: what is left is one line, and a JSON string. */
void said_make_plain(char *text);

/* A text to print, plain and cut to what fits. Use: said_plain(text).text. */
struct said {
    char text[160];
};
struct said said_plain(const char *text);
/* At most so many bytes; "-" for what is no text. */
struct said said_text(const json_t *v, int most);

/* A number, cut to min..max and to a whole one; what is no number counts as 0. */
int64_t said_whole(const json_t *v, int64_t min, int64_t max);

#endif
