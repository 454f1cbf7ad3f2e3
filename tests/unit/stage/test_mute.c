/* Connections that say nothing. They stay for the handshake's deadline, so this takes seconds. */
#include "tests/unit/stage/ends.h"

#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "stage/link_listener.h"

/* Mute and slow connections, more than there are places, on both sockets of a port that then forms its links. */
static void mute_connections_neither_stay_nor_keep_a_neighbour_out(void **state)
{
    (void)state;
    struct end e[2];
    int mute[LISTENER_MAX_PENDING + 10];
    const int n_mute = (int)(sizeof mute / sizeof mute[0]);
    ends_make(BY_TCP, e);
    for (int i = 0; i < n_mute; i++) {
        mute[i] = ends_connect_to(e[0].port, 0);
        if (i % 2)
            send(mute[i], "SLUILNK1 half a hello", 20, MSG_NOSIGNAL);
    }
    int64_t start_ns = clock_now_ns();
    ends_join(e);
    assert_int_equal(e[0].status, STATUS_OK);
    assert_int_equal(e[1].status, STATUS_OK);
    assert_true(clock_now_ns() - start_ns < NS_PER_S);
    struct link_socket_counters n;
    link_socket_port_counters(e[0].port, &n);
    assert_true(n.pending <= LISTENER_MAX_PENDING);
    for (int i = 0; i < n_mute; i++) {
        assert_true(ends_closed_after(mute[i], 4000) < 3000);
        close(mute[i]);
    }
    ends_destroy(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mute_connections_neither_stay_nor_keep_a_neighbour_out),
    };
    log_set_levels("error", NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
