/* common/base/log.h - one line an event on stderr, ids first.
 *
 * Purpose    LOG_INFO("req %s slot %u: ...") and its kin; each file that logs defines LOG_MODULE before including this.
 *            Levels go by volume; `--log LEVEL[,module=LEVEL]` sets a mask by module. Prompt text never above trace.
 *            What clients can cause as often as they like is said by LOG_SOME: a few lines a second, and how many were left out.
 * Threading  Any thread; a line is written with one write(2).
 * Errors     None: a line that cannot be written is lost. So is one that nobody reads: a pager, a terminal that is held by Ctrl-S
 *            or a session whose network hangs stops no process (it waits for a quarter of a second once; lost lines are counted).
 */
#ifndef SLUICE_COMMON_BASE_LOG_H
#define SLUICE_COMMON_BASE_LOG_H

#include <stdatomic.h>

#include "common/base/error.h"

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARN, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG, LOG_LEVEL_TRACE };

/* Program name in front of each line ("coordinator", "stage 1"). Copied. Call before threads start. */
void log_open(const char *program);
const char *log_program(void); /* async-signal-safe */
/* "info", "info,engine=debug,link=trace". Call before threads start. */
enum status log_set_levels(const char *spec, struct error *err);
int log_enabled(enum log_level level, const char *module);
/* May fd be written to without waiting for whoever reads it? Async-signal-safe. */
int log_has_room(int fd);
void log_write(enum log_level level, const char *module, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* All zero at first. */
struct log_limit {
    atomic_llong second;
    atomic_uint n, n_left_out;
};
enum { LOG_LIMIT_PER_S = 10 };
/* May another line of this kind be written in this second? *left_out: how many may not since the last time that this was told. */
int log_limit_take(struct log_limit *l, unsigned *left_out);

#ifdef LOG_MODULE
#define LOG_AT(level, ...) (log_enabled(level, LOG_MODULE) ? log_write(level, LOG_MODULE, __VA_ARGS__) : (void)0)
#define LOG_ERROR(...) LOG_AT(LOG_LEVEL_ERROR, __VA_ARGS__)
#define LOG_WARN(...) LOG_AT(LOG_LEVEL_WARN, __VA_ARGS__)
#define LOG_INFO(...) LOG_AT(LOG_LEVEL_INFO, __VA_ARGS__)
#define LOG_DEBUG(...) LOG_AT(LOG_LEVEL_DEBUG, __VA_ARGS__)
#define LOG_TRACE(...) LOG_AT(LOG_LEVEL_TRACE, __VA_ARGS__)
#define LOG_SOME(level, ...)                                                                                           \
    do {                                                                                                               \
        static struct log_limit limit_;                                                                                \
        unsigned left_out_;                                                                                            \
        if (log_enabled(level, LOG_MODULE) && log_limit_take(&limit_, &left_out_)) {                                   \
            if (left_out_)                                                                                             \
                log_write(level, LOG_MODULE, "%u lines like the next one were left out", left_out_);                   \
            log_write(level, LOG_MODULE, __VA_ARGS__);                                                                 \
        }                                                                                                              \
    } while (0)
#endif

#endif
