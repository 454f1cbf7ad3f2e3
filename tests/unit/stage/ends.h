/* tests/unit/stage/ends.h - two ports of two stages with the links between them, and strangers who dial in.
 *
 * Purpose    What tests of links share.
 * Ownership  ends_open/ends_close.
 * Threading  The test's thread; ends_join uses a second one for a moment.
 * Errors     Failed cmocka assertions.
 */
#ifndef SLUICE_TESTS_UNIT_STAGE_ENDS_H
#define SLUICE_TESTS_UNIT_STAGE_ENDS_H

#include "tests/unit/stage/cmocka_all.h"

#include "stage/link.h"

enum { ENDS_SESSION = 5 };
enum how { IN_MEMORY, BY_UNIX, BY_TCP, BY_TLS, N_WAYS };

struct end {
    struct link_port *port;
    struct link_form form;
    struct link_pair pair;
    struct error err;
    enum status status;
};

extern const uint8_t ends_key[32];

void ends_open(enum how how, struct end e[2]);
void ends_close(struct end e[2]);
struct link_port *ends_make_port(enum how how);
void ends_make(enum how how, struct end e[2]); /* the ports alone, and what each asks for in epoch 1; not IN_MEMORY */
void ends_destroy(struct end e[2]);            /* the links that were formed, and the ports */
/* What stage `stage` of two asks for in an epoch; next: the other's port. */
struct link_form ends_form(uint32_t stage, uint64_t epoch, struct link_port *next);
void *ends_form_thread(void *end);  /* forms one end */
void ends_join(struct end e[2]);    /* forms both at once */
/* A stranger's connection. */
int ends_connect_to(struct link_port *p, int by_unix);
/* Milliseconds until the other end closes it; at most limit_ms. */
int64_t ends_closed_after(int fd, int limit_ms);

#endif
