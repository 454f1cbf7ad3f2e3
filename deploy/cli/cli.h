/* deploy/cli/cli.h - the commands of `sluice`.
 *
 * Purpose    chat and complete against a running service by HTTP; main.c reads the flags, each command has its file.
 * Ownership  Option strings are argv's.
 * Threading  Main thread.
 * Errors     As http.h.
 */
#ifndef SLUICE_DEPLOY_CLI_CLI_H
#define SLUICE_DEPLOY_CLI_CLI_H

#include <stdint.h>

#include "deploy/cli/http.h"

struct chat_options {
    struct http http;
    const char *model, *system;
    const char *text;   /* one question; NULL: a conversation on standard input */
    int64_t max_tokens; /* 0: the service's default */
    double temperature; /* < 0: the service's default */
    int64_t seed;
    int has_seed;
};

enum status chat_run(const struct chat_options *o, struct error *err);
/* How text goes on, without a template: what a base model can do. */
enum status complete_run(const struct chat_options *o, struct error *err);

#endif
