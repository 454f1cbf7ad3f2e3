/* common/base/file.h - a small file as a whole.
 *
 * Purpose    Reads what a person named by a flag (keys, a template) into memory, with a bound. Not for models, which are mapped, nor for
 *            private keys, whose memory is wiped (rpc/grpc/tls.c).
 * Ownership  The text is the caller's, freed with free().
 * Threading  Pure.
 * Errors     STATUS_CONFIG: it cannot be opened or read, or is larger than allowed; STATUS_OUT_OF_MEMORY. The message starts with the path.
 */
#ifndef SLUICE_COMMON_BASE_FILE_H
#define SLUICE_COMMON_BASE_FILE_H

#include <stddef.h>

#include "common/base/error.h"

/* *out: len bytes and a 0 behind them. */
enum status file_read(const char *path, size_t max_bytes, char **out, size_t *len, struct error *err);

#endif
