/* The journal of an exchange, and the arithmetic of what a connection still lacks. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/rand.h"
#include "rpc/gateway/keeper.h"

/* A connected pair over TCP: positions are those of a real connection. */
static void tcp_pair(int out[2])
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(listener, 1), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&a, &len), 0);
    out[1] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(out[1], (struct sockaddr *)&a, sizeof a), 0);
    out[0] = accept(listener, NULL, NULL);
    assert_true(out[0] >= 0);
    close(listener);
}

static struct keeper *reopen(struct keeper *k)
{
    struct error err;
    struct keeper *again;
    int fd = dup(keeper_fd(k));
    assert_int_equal(keeper_open(fd, &again, &err), STATUS_OK);
    return again;
}

static void records_and_state_are_there_for_the_next_process(void **state)
{
    struct keeper *k, *again;
    struct kept kept;
    struct keeper_record r;
    uint64_t at = 0;
    (void)state;
    assert_int_equal(keeper_create(77, &k), STATUS_OK);
    keeper_record(k, KEEPER_USER, "abc", 3);
    keeper_record(k, KEEPER_USER + 1, NULL, 0);
    keeper_state(k)->attempt = 3;
    keeper_publish(k);
    again = reopen(k);
    keeper_view(again, &kept);
    assert_int_equal(kept.state.wire_begin, 77);
    assert_int_equal(kept.state.attempt, 3);
    assert_true(keeper_next(&kept, &at, &r) && r.kind == KEEPER_USER && r.len == 3 && memcmp(r.data, "abc", 3) == 0);
    assert_true(keeper_next(&kept, &at, &r) && r.kind == KEEPER_USER + 1 && r.len == 0);
    assert_false(keeper_next(&kept, &at, &r));
    keeper_record(again, KEEPER_USER, "later", 5); /* and it is continued */
    keeper_publish(again);
    keeper_view(k, &kept);
    assert_true(keeper_find(&kept, KEEPER_USER, &r) && r.len == 5);
    keeper_close(again);
    keeper_close(k);
}

static void what_was_not_published_does_not_count(void **state)
{
    struct keeper *k, *again;
    struct kept kept;
    struct keeper_record r;
    (void)state;
    assert_int_equal(keeper_create(0, &k), STATUS_OK);
    keeper_record(k, KEEPER_USER, "one", 3);
    keeper_publish(k);
    keeper_record(k, KEEPER_USER, "two", 3);
    keeper_content(k, "text", 4);
    again = reopen(k);
    keeper_view(again, &kept);
    assert_true(keeper_find(&kept, KEEPER_USER, &r) && memcmp(r.data, "one", 3) == 0);
    assert_int_equal(kept.state.produced, 0);
    keeper_record(again, KEEPER_USER, "new", 3); /* takes the place of what nobody saw */
    keeper_publish(again);
    keeper_view(again, &kept);
    assert_true(keeper_find(&kept, KEEPER_USER, &r) && memcmp(r.data, "new", 3) == 0);
    keeper_close(again);
    keeper_close(k);
}

static void a_sequence_that_grows_goes_on_in_the_next_process(void **state)
{
    struct keeper *k, *again;
    struct kept kept;
    struct buf b;
    uint32_t next = 0;
    (void)state;
    assert_int_equal(keeper_create(0, &k), STATUS_OK);
    for (int round = 0; round < 6; round++) {
        for (uint32_t i = 0; i < 700; i += 7) { /* over the ends of records, with others in between */
            uint32_t words[7];
            for (uint32_t w = 0; w < 7; w++)
                words[w] = next++;
            keeper_append(k, words, sizeof words);
            if (i % 91 == 0)
                keeper_record(k, KEEPER_USER, "x", 1);
        }
        keeper_publish(k);
        keeper_append(k, "lost", 4); /* not published */
        again = reopen(k);
        keeper_view(again, &kept);
        buf_init(&b, 1 << 20);
        assert_int_equal(keeper_appended(&kept, &b), STATUS_OK);
        assert_int_equal(b.len, next * sizeof next);
        for (uint32_t i = 0; i < next; i++)
            assert_memory_equal(b.data + i * sizeof i, &i, sizeof i);
        buf_fini(&b);
        keeper_close(k);
        k = again;
    }
    keeper_close(k);
}

static void a_journal_grows_with_its_records_up_to_its_bound(void **state)
{
    enum { PIECE = 3 << 20 };
    struct keeper *k, *again;
    struct kept kept;
    struct keeper_record r;
    char *piece = malloc(PIECE);
    uint64_t at = 0;
    int n = 0;
    (void)state;
    assert_int_equal(keeper_create(0, &k), STATUS_OK);
    for (; !keeper_failed(k); n++) {
        memset(piece, 'a' + n % 26, PIECE);
        keeper_record(k, KEEPER_USER, piece, PIECE);
        if (!keeper_failed(k))
            keeper_publish(k);
    }
    assert_int_equal(n, KEEPER_FILE_BYTES / PIECE); /* head and ring have their room too, so the last one was too much */
    again = reopen(k);
    keeper_view(again, &kept);
    for (int i = 0; i + 1 < n; i++)
        assert_true(keeper_next(&kept, &at, &r) && r.len == PIECE && r.data[PIECE - 1] == 'a' + i % 26);
    assert_false(keeper_next(&kept, &at, &r));
    keeper_close(again);
    keeper_close(k);
    free(piece);
}

static void content_that_the_client_lacks_is_in_the_ring_or_the_keeper_fails(void **state)
{
    int pair[2];
    struct keeper *k;
    struct kept kept;
    struct buf b;
    char piece[10000];
    (void)state;
    tcp_pair(pair);
    assert_int_equal(keeper_create(0, &k), STATUS_OK);
    keeper_state(k)->framing = KEEPER_CHUNKED;
    buf_init(&b, 1 << 20);
    for (int i = 0; i < 200; i++) { /* 2 MB pass through a ring of an eighth */
        memset(piece, 'a' + i % 26, sizeof piece);
        keeper_content(k, piece, sizeof piece);
        keeper_frame(k, sizeof piece, pair[0]);
        keeper_view(k, &kept);
        buf_clear(&b);
        assert_int_equal(keeper_copy(&kept, kept.state.handed - kept.state.frame_content, kept.state.produced, &b), STATUS_OK);
        assert_true(b.len == sizeof piece && memcmp(b.data, piece, b.len) == 0);
    }
    assert_false(keeper_failed(k));
    for (int i = 0; i < 12; i++)
        keeper_content(k, piece, sizeof piece);
    assert_false(keeper_failed(k));
    for (int i = 0; i < 12; i++) /* nobody takes it */
        keeper_content(k, piece, sizeof piece);
    assert_true(keeper_failed(k));
    buf_fini(&b);
    keeper_close(k);
    close(pair[0]);
    close(pair[1]);
}

static void a_position_counts_what_the_kernel_took_read_or_not(void **state)
{
    int pair[2];
    uint64_t before, after;
    char some[5000] = "", got[3000];
    (void)state;
    tcp_pair(pair);
    assert_int_equal(keeper_position(pair[0], &before), STATUS_OK);
    assert_int_equal(write(pair[0], some, sizeof some), sizeof some);
    assert_int_equal(keeper_position(pair[0], &after), STATUS_OK);
    assert_int_equal(after - before, sizeof some);
    assert_true(read(pair[1], got, sizeof got) > 0);
    usleep(2000);
    assert_int_equal(keeper_position(pair[0], &after), STATUS_OK);
    assert_int_equal(after - before, sizeof some);
    int other[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, other), 0);
    assert_int_not_equal(keeper_position(other[0], &after), STATUS_OK);
    for (int i = 0; i < 2; i++) {
        close(pair[i]);
        close(other[i]);
    }
}

static void what_nobody_has_read_is_there_for_the_next_process(void **state)
{
    int pair[2];
    uint64_t before, after;
    char some[5000] = "", got[3000];
    (void)state;
    tcp_pair(pair);
    assert_int_equal(keeper_consumed(pair[0], &before), STATUS_OK);
    assert_int_equal(write(pair[1], some, sizeof some), sizeof some);
    usleep(2000);
    assert_int_equal(keeper_consumed(pair[0], &after), STATUS_OK);
    assert_int_equal(after, before);
    assert_int_equal(read(pair[0], got, sizeof got), sizeof got);
    assert_int_equal(keeper_consumed(pair[0], &after), STATUS_OK);
    assert_int_equal(after - before, sizeof got);
    close(pair[0]);
    close(pair[1]);
}

/* Everything that a stream sends behind its head, as one text, and after each byte of it what the rest is. */
static void every_byte_of_a_chunked_answer_has_its_rest(void **state)
{
    struct keeper_state s = {.framing = KEEPER_CHUNKED, .wire_begin = 100, .wire_body = 150, .body_known = 1};
    static const uint32_t sizes[] = {1, 15, 16, 255, 256, 4095, 4096, KEEPER_FRAME_MAX, 3};
    struct keeper_rest rest;
    struct buf frame;
    (void)state;
    buf_init(&frame, 1 << 20);
    for (size_t i = 0; i <= sizeof sizes / sizeof *sizes; i++) {
        int last = i == sizeof sizes / sizeof *sizes;
        s.frame_at += keeper_frame_bytes(&s);
        s.frame_content = last ? 0 : sizes[i];
        s.handed += s.frame_content;
        s.last = (uint32_t)last;
        buf_clear(&frame);
        keeper_frame_open(&frame, s.frame_content);
        for (uint32_t n = 0; n < s.frame_content; n++)
            buf_append(&frame, "x", 1);
        keeper_frame_close(&frame);
        assert_int_equal(keeper_frame_bytes(&s), frame.len);
        for (uint64_t sent = 0; sent <= frame.len; sent++) {
            assert_int_equal(keeper_rest(&s, 0, s.wire_body + s.frame_at + sent, &rest), STATUS_OK);
            assert_false(rest.whole);
            assert_int_equal(rest.frame_left, frame.len - sent);
            assert_int_equal(rest.content_at, s.handed);
        }
        assert_int_equal(keeper_rest(&s, 0, s.wire_body + s.frame_at + frame.len + 1, &rest), STATUS_PROTOCOL);
        if (s.frame_at)
            assert_int_equal(keeper_rest(&s, 0, s.wire_body + s.frame_at - 1, &rest), STATUS_PROTOCOL);
    }
    buf_fini(&frame);
}

static void the_head_is_sent_once(void **state)
{
    struct keeper_state s = {.wire_begin = 100};
    struct keeper_rest rest;
    (void)state;
    assert_int_equal(keeper_rest(&s, 0, 100, &rest), STATUS_OK); /* nobody has answered */
    assert_true(rest.whole);
    assert_int_equal(keeper_rest(&s, 0, 101, &rest), STATUS_PROTOCOL);
    assert_int_equal(keeper_rest(&s, 0, 99, &rest), STATUS_PROTOCOL);
    s.framing = KEEPER_CHUNKED;
    assert_int_equal(keeper_rest(&s, 0, 100, &rest), STATUS_OK);
    assert_true(rest.whole);
    assert_int_equal(keeper_rest(&s, 0, 180, &rest), STATUS_OK); /* libmicrohttpd's head, no frame yet */
    assert_true(!rest.whole && !rest.frame_left && !rest.content_at && !rest.head_left);
    s.body_known = 1;
    s.wire_body = 150;
    assert_int_equal(keeper_rest(&s, 50, 120, &rest), STATUS_OK); /* our own head */
    assert_int_equal(rest.head_left, 30);
    assert_int_equal(keeper_rest(&s, 20, 120, &rest), STATUS_PROTOCOL);
    assert_int_equal(keeper_rest(&s, 50, 150, &rest), STATUS_OK);
    assert_int_equal(rest.head_left, 0);
    s.framing = KEEPER_LENGTH;
    s.handed = s.produced = 400;
    assert_int_equal(keeper_rest(&s, 0, 150 + 399, &rest), STATUS_OK);
    assert_int_equal(rest.content_at, 399);
    assert_int_equal(keeper_rest(&s, 0, 150 + 401, &rest), STATUS_PROTOCOL);
    s.last = s.ended = 1; /* what comes behind the body is under way: the kernel has the body */
    assert_int_equal(keeper_rest(&s, 0, 150 + 400, &rest), STATUS_OK);
    assert_int_equal(keeper_rest(&s, 0, 150 + 399, &rest), STATUS_PROTOCOL);
    s.handed = s.produced = 0;
    assert_int_equal(keeper_rest(&s, 50, 149, &rest), STATUS_PROTOCOL); /* and the head */
}

static void a_broken_image_is_refused(void **state)
{
    struct keeper *k;
    struct kept kept;
    struct stat st;
    struct error err;
    (void)state;
    assert_int_equal(keeper_create(5, &k), STATUS_OK);
    keeper_record(k, KEEPER_USER, "hello", 5);
    keeper_publish(k);
    assert_int_equal(fstat(keeper_fd(k), &st), 0);
    size_t len = (size_t)st.st_size;
    char *image = malloc(len), *own = mmap(NULL, len, PROT_READ, MAP_SHARED, keeper_fd(k), 0);
    assert_ptr_not_equal(own, MAP_FAILED);
    memcpy(image, own, len);
    assert_int_equal(keeper_read(image, len, &kept, &err), STATUS_OK);
    assert_int_equal(keeper_read(image, KEEPER_PAGE, &kept, &err), STATUS_PROTOCOL);
    assert_int_equal(keeper_read(image, KEEPER_PAGE + KEEPER_RING_BYTES, &kept, &err), STATUS_PROTOCOL); /* the record is cut off */
    image[0] ^= 1;
    assert_int_equal(keeper_read(image, len, &kept, &err), STATUS_PROTOCOL);
    image[0] ^= 1;
    memset(image + KEEPER_PAGE + KEEPER_RING_BYTES + 4, 0xff, 4); /* a record longer than all */
    assert_int_equal(keeper_read(image, len, &kept, &err), STATUS_PROTOCOL);
    munmap(own, len);
    free(image);
    keeper_close(k);
    int other = memfd_create("other", MFD_CLOEXEC);
    assert_int_equal(ftruncate(other, 1 << 20), 0);
    assert_int_equal(keeper_open(other, &k, &err), STATUS_PROTOCOL); /* could be cut off under us */
}

static enum status open_again(struct keeper *k)
{
    struct keeper *again;
    struct error err;
    keeper_publish(k);
    enum status s = keeper_open(dup(keeper_fd(k)), &again, &err);
    if (s == STATUS_OK)
        keeper_close(again);
    return s;
}

/* Each contradicts itself: whoever went on with it would leave something out or send something twice. */
static void a_state_that_nobody_writes_is_refused(void **state)
{
    static const struct {
        struct keeper_state s;
        enum status expected;
    } all[] = {
        {{.framing = KEEPER_UNANSWERED, .attempt = 3}, STATUS_OK},
        {{.framing = KEEPER_UNANSWERED, .produced = 1}, STATUS_PROTOCOL},
        {{.framing = KEEPER_UNANSWERED, .ended = 1}, STATUS_PROTOCOL},
        {{.framing = KEEPER_UNANSWERED, .body_known = 1}, STATUS_PROTOCOL},
        {{.framing = KEEPER_UNANSWERED, .last = 1, .ended = 1}, STATUS_PROTOCOL},
        {{.framing = KEEPER_CHUNKED, .produced = 9, .handed = 4, .frame_content = 4, .body_known = 1}, STATUS_OK},
        {{.framing = KEEPER_CHUNKED, .produced = 9, .handed = 4, .frame_content = 4}, STATUS_PROTOCOL}, /* a frame without a head */
        {{.framing = KEEPER_CHUNKED, .produced = 9, .handed = 9, .body_known = 1, .last = 1, .ended = 1}, STATUS_OK},
        {{.framing = KEEPER_CHUNKED, .produced = 9, .handed = 9, .body_known = 1, .last = 1}, STATUS_PROTOCOL}, /* the last, and more comes */
        {{.framing = KEEPER_CHUNKED, .produced = 9, .handed = 8, .body_known = 1, .last = 1, .ended = 1}, STATUS_PROTOCOL},
    };
    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct keeper *k;
        assert_int_equal(keeper_create(0, &k), STATUS_OK);
        *keeper_state(k) = all[i].s;
        assert_int_equal(open_again(k), all[i].expected);
        keeper_close(k);
    }
}

static void a_sequence_that_does_not_end_in_its_last_record_is_refused(void **state)
{
    struct keeper *k;
    (void)state;
    assert_int_equal(keeper_create(0, &k), STATUS_OK);
    keeper_append(k, "abc", 3);
    assert_int_equal(open_again(k), STATUS_OK);
    keeper_record(k, KEEPER_APPENDED, "12345678", 8); /* what is appended next would come behind what nobody wrote */
    assert_int_equal(open_again(k), STATUS_PROTOCOL);
    keeper_close(k);
}

/* A file of a file system has no seals at all. */
static void a_journal_in_a_common_file_is_refused(void **state)
{
    struct keeper *k;
    struct error err;
    struct stat st;
    char path[] = "./journal-XXXXXX";
    int fd = mkstemp(path);
    (void)state;
    assert_true(fd >= 0);
    unlink(path);
    assert_int_equal(keeper_create(0, &k), STATUS_OK);
    assert_int_equal(fstat(keeper_fd(k), &st), 0);
    char *image = malloc((size_t)st.st_size);
    assert_int_equal(pread(keeper_fd(k), image, (size_t)st.st_size, 0), st.st_size);
    assert_int_equal(write(fd, image, (size_t)st.st_size), st.st_size);
    keeper_close(k);
    free(image);
    assert_int_equal(keeper_open(fd, &k, &err), STATUS_PROTOCOL);
}

/* A process writes content, records and frames as fast as it can and is killed at any moment; whatever is there is of one piece. */
static void a_writer_that_is_killed_leaves_one_whole_state(void **state)
{
    enum { ROUNDS = 40 };
    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        struct keeper *k, *again;
        struct kept kept;
        struct keeper_record r;
        int pair[2];
        tcp_pair(pair);
        assert_int_equal(keeper_create(0, &k), STATUS_OK);
        keeper_state(k)->framing = KEEPER_CHUNKED;
        pid_t pid = fork();
        if (pid == 0) {
            uint32_t i = 0;
            for (;;) {
                char piece[64];
                size_t n = (size_t)snprintf(piece, sizeof piece, "%u,", ++i);
                keeper_record(k, KEEPER_USER, &i, sizeof i);
                keeper_content(k, piece, n);
                keeper_state(k)->attempt = i;
                keeper_publish(k);
                keeper_frame(k, (long)n, pair[0]);
            }
        }
        usleep((useconds_t)(500 + rand_mix((uint64_t)round) % 3000));
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        again = reopen(k);
        keeper_view(again, &kept);
        uint64_t at = 0;
        uint32_t i = 0, value;
        while (keeper_next(&kept, &at, &r)) {
            memcpy(&value, r.data, sizeof value);
            assert_true(r.len == sizeof value && value == ++i);
        }
        assert_int_equal(kept.state.attempt, i);
        struct buf b;
        char want[64];
        buf_init(&b, 1 << 20);
        int n = snprintf(want, sizeof want, "%u,", i);
        if (i)
            assert_int_equal(keeper_copy(&kept, kept.state.produced - (uint64_t)n, kept.state.produced, &b), STATUS_OK);
        assert_true(!i || memcmp(b.data, want, (size_t)n) == 0);
        assert_true(kept.state.handed == kept.state.produced || kept.state.handed + (uint64_t)n == kept.state.produced);
        buf_fini(&b);
        keeper_close(again);
        keeper_close(k);
        close(pair[0]);
        close(pair[1]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(records_and_state_are_there_for_the_next_process),
        cmocka_unit_test(what_was_not_published_does_not_count),
        cmocka_unit_test(a_sequence_that_grows_goes_on_in_the_next_process),
        cmocka_unit_test(a_journal_grows_with_its_records_up_to_its_bound),
        cmocka_unit_test(content_that_the_client_lacks_is_in_the_ring_or_the_keeper_fails),
        cmocka_unit_test(a_position_counts_what_the_kernel_took_read_or_not),
        cmocka_unit_test(what_nobody_has_read_is_there_for_the_next_process),
        cmocka_unit_test(every_byte_of_a_chunked_answer_has_its_rest),
        cmocka_unit_test(the_head_is_sent_once),
        cmocka_unit_test(a_broken_image_is_refused),
        cmocka_unit_test(a_state_that_nobody_writes_is_refused),
        cmocka_unit_test(a_sequence_that_does_not_end_in_its_last_record_is_refused),
        cmocka_unit_test(a_journal_in_a_common_file_is_refused),
        cmocka_unit_test(a_writer_that_is_killed_leaves_one_whole_state),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
