/* common/base/check.h - what must be true.
 *
 * Purpose    CHECK holds in every build, ASSERT in debug builds. Both are for our own logic, never for input from a
 *            network or a file: those are statuses.
 * Threading  Any.
 * Errors     A failed check prints file, line and condition, dumps the trace ring and aborts.
 */
#ifndef SLUICE_COMMON_BASE_CHECK_H
#define SLUICE_COMMON_BASE_CHECK_H

_Noreturn void check_failed(const char *file, int line, const char *condition);

#define CHECK(cond) ((cond) ? (void)0 : check_failed(__FILE__, __LINE__, #cond))
#ifdef NDEBUG
#define ASSERT(cond) ((void)sizeof(cond))
#else
#define ASSERT(cond) CHECK(cond)
#endif

#define ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))

#endif
