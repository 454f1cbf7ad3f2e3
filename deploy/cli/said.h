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

/* Bytes of the control character at p, UTF-8; 0: there is none. Those of C1 have two. */
size_t said_control(const char *p);
/* Bytes of control characters, ends of lines too, become '?'. */
void said_make_plain(char *text);

/* A text to print, plain and cut to what fits; "-" for what is no text. Use: said_text(v).text. */
struct said {
    char text[160];
};
struct said said_text(const json_t *v);

/* A number, cut to min..max and to a whole one; what is no number counts as 0. */
int64_t said_whole(const json_t *v, int64_t min, int64_t max);

#endif
