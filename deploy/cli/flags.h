/* deploy/cli/flags.h - numbers on the command line of `sluice`.
 *
 * Purpose    The whole text is a number within the range, or it is not; each command says so in its own words.
 * Ownership  Nothing is kept.
 * Threading  Pure.
 * Errors     0: not a number, or out of range; *out is untouched.
 */
#ifndef SLUICE_DEPLOY_CLI_FLAGS_H
#define SLUICE_DEPLOY_CLI_FLAGS_H

#include <stdlib.h>

static inline int flag_whole(const char *text, long long min, long long max, long long *out)
{
    char *end;
    long long v = strtoll(text, &end, 10);
    if (!*text || *end || v < min || v > max)
        return 0;
    *out = v;
    return 1;
}

static inline int flag_real(const char *text, double min, double max, double *out)
{
    char *end;
    double v = strtod(text, &end);
    if (!*text || *end || !(v >= min && v <= max))
        return 0;
    *out = v;
    return 1;
}

#endif
