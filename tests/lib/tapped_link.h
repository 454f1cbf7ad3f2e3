/* tests/lib/tapped_link.h - links that ask at every read and write whether their process still lives.
 *
 * Purpose    Wraps any link port (stage/link.h), so that a test can end a stage between two bytes of a frame.
 * Ownership  The wrapper owns the port inside and is destroyed through its table, as any port is.
 * Threading  pass is called on the compute thread.
 * Errors     STATUS_CLOSED: pass said no.
 */
#ifndef SLUICE_TESTS_LIB_TAPPED_LINK_H
#define SLUICE_TESTS_LIB_TAPPED_LINK_H

#include "stage/link.h"

struct link_tap {
    /* Before (after 0) and after (after 1) each read that brought bytes and each write. 0: the process is gone. */
    int (*pass)(void *ctx, int writes, int after);
    void *ctx;
};

enum status tapped_link_port_create(struct link_port *inside, const struct link_tap *tap, struct link_port **out);

#endif
