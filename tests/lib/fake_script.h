/* tests/lib/fake_script.h - what a fake stage is told to cost, to say and to break.
 *
 * Purpose    Reads the script of `--script FILE[,FILE]`: `name value` lines, described in tests/lib/README.md.
 * Ownership  fake_script_read fills a plain struct; fake_script_free frees its lists.
 * Threading  Read-only after reading.
 * Errors     STATUS_CONFIG naming file, line and what is allowed.
 */
#ifndef SLUICE_TESTS_LIB_FAKE_SCRIPT_H
#define SLUICE_TESTS_LIB_FAKE_SCRIPT_H

#include <stdint.h>

#include "common/base/error.h"

enum fake_event_kind { FAKE_FAIL = 1, FAKE_FAIL_FROM, FAKE_SLEEP, FAKE_SLOW, FAKE_BAD_LOGITS, FAKE_CRASH };

enum { FAKE_MAX_EVENTS = 64, FAKE_MAX_ANSWER = 1 << 16, FAKE_SCRIPT_PATH = 64 };

struct fake_event {
    enum fake_event_kind kind;
    uint64_t tick;  /* of this process, from 1 */
    int64_t value;  /* status, milliseconds or signal */
};

struct fake_script {
    uint32_t tick_us, row_us, token_us, load_ms, start_ms;
    uint32_t poison_id;
    int poison_signal;   /* 0: nothing is poison */
    uint32_t width;      /* floats of a row on the link */
    uint32_t end_after;  /* 0: never */
    uint32_t answer_at;  /* where answers begin, 0: where a sequence is sampled first */
    int repeat;          /* the answer starts again instead of ending */
    uint32_t n_answer;
    int32_t *answer;     /* ids; NULL: hash-chain letters */
    uint32_t n_events;
    struct fake_event events[FAKE_MAX_EVENTS];
};

void fake_script_defaults(struct fake_script *s);
/* paths: files, separated by commas, a later one wins; NULL: the defaults. Lines that begin with `stage I` hold for that
 * stage only, with `life N` for its Nth process only (0: the first). */
enum status fake_script_read(const char *paths, uint32_t stage, uint32_t life, struct fake_script *out, struct error *err);
void fake_script_free(struct fake_script *s);
/* Writes a script into a new file, which the caller unlinks. */
void fake_script_file(const char *text, char path[FAKE_SCRIPT_PATH]);

#endif
