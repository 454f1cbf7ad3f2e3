/* deploy/cli/status.h - `sluice status`.
 *
 * Purpose    /v1/status as a table for people. What the service did not tell is '-' or 0; what it told is shown, whatever it is.
 * Ownership  Nothing is kept.
 * Threading  Main thread.
 * Errors     As http.h.
 */
#ifndef SLUICE_DEPLOY_CLI_STATUS_H
#define SLUICE_DEPLOY_CLI_STATUS_H

#include <stdio.h>

#include "deploy/cli/http.h"

/* json: the raw answer instead of the table. */
enum status status_run(const struct http *h, int json, struct error *err);
void status_print(const json_t *status, FILE *f);

#endif
