/* common/base/log.h - one line an event on stderr, ids first.
 *
 * Purpose    LOG_INFO("req %s slot %u: ...") and its kin; each file that logs defines LOG_MODULE before including this.
 *            Levels go by volume; `--log LEVEL[,module=LEVEL]` sets a mask by module. Prompt text never above trace.
 * Threading  Any thread; a line is written with one write(2).
 * Errors     None: a line that cannot be written is lost.
 */
#ifndef SLUICE_COMMON_BASE_LOG_H
#define SLUICE_COMMON_BASE_LOG_H

#include "common/base/error.h"

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARN, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG, LOG_LEVEL_TRACE };

/* Program name in front of each line ("coordinator", "stage 1"). Copied. Call before threads start. */
void log_open(const char *program);
/* "info", "info,engine=debug,link=trace". Call before threads start. */
enum status log_set_levels(const char *spec, struct error *err);
int log_enabled(enum log_level level, const char *module);
void log_write(enum log_level level, const char *module, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

#ifdef LOG_MODULE
#define LOG_AT(level, ...) (log_enabled(level, LOG_MODULE) ? log_write(level, LOG_MODULE, __VA_ARGS__) : (void)0)
#define LOG_ERROR(...) LOG_AT(LOG_LEVEL_ERROR, __VA_ARGS__)
#define LOG_WARN(...) LOG_AT(LOG_LEVEL_WARN, __VA_ARGS__)
#define LOG_INFO(...) LOG_AT(LOG_LEVEL_INFO, __VA_ARGS__)
#define LOG_DEBUG(...) LOG_AT(LOG_LEVEL_DEBUG, __VA_ARGS__)
#define LOG_TRACE(...) LOG_AT(LOG_LEVEL_TRACE, __VA_ARGS__)
#endif

#endif
