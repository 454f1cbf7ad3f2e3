/* What a client lacks of an answer that another process began: at every place where its connection can stand, all of it and nothing twice. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "rpc/gateway/kept_answer.h"

enum { BEGIN = 100, HEAD = 17 };
static const char head[HEAD + 1] = "HTTP/1.1 200 OK\r\n", text[] = "data: one\n\n";

static struct keeper *journal(enum keeper_framing framing)
{
    struct keeper *k;
    assert_int_equal(keeper_create(BEGIN, &k), STATUS_OK);
    struct keeper_state *s = keeper_state(k);
    s->framing = framing;
    if (framing == KEEPER_UNANSWERED)
        return k;
    keeper_record(k, KEEPER_HEAD, head, HEAD);
    s->wire_body = BEGIN + HEAD;
    s->body_known = 1;
    return k;
}

static enum status read_at(struct keeper *k, uint64_t position, struct kept_answer *a)
{
    struct kept kept;
    struct error err;
    keeper_publish(k);
    assert_false(keeper_failed(k));
    keeper_view(k, &kept);
    return kept_answer_read(&kept, position, a, &err);
}

static void assert_lacks(struct keeper *k, uint64_t position, const char *pending, const char *out)
{
    struct kept_answer a;
    assert_int_equal(read_at(k, position, &a), STATUS_OK);
    assert_int_equal(a.pending.len, strlen(pending));
    assert_int_equal(a.out.len, strlen(out));
    assert_true(!a.pending.len || memcmp(a.pending.data, pending, a.pending.len) == 0);
    assert_true(!a.out.len || memcmp(a.out.data, out, a.out.len) == 0);
    kept_answer_fini(&a);
}

static void nothing_was_said_so_all_of_it_comes(void **state)
{
    struct keeper *k = journal(KEEPER_UNANSWERED);
    struct kept_answer a;
    (void)state;
    assert_int_equal(read_at(k, BEGIN, &a), STATUS_OK);
    assert_true(a.need_head && !a.last_taken && a.framing == KEEPER_UNANSWERED && !a.pending.len && !a.out.len);
    kept_answer_fini(&a);
    assert_int_equal(read_at(k, BEGIN + 1, &a), STATUS_PROTOCOL);
    assert_int_equal(read_at(k, BEGIN - 1, &a), STATUS_PROTOCOL);
    keeper_close(k);
}

static void a_stream_goes_on_in_the_middle_of_its_head_and_of_a_frame(void **state)
{
    struct keeper *k = journal(KEEPER_CHUNKED);
    struct kept_answer a;
    static const char frame[] = "4\r\ndata\r\n";
    (void)state;
    keeper_content(k, text, strlen(text));
    for (uint64_t i = 1; i <= HEAD; i++)
        assert_lacks(k, BEGIN + i, head + i, text);
    keeper_frame(k, 4, -1);
    for (uint64_t i = 0; i <= strlen(frame); i++)
        assert_lacks(k, BEGIN + HEAD + i, frame + i, text + 4);
    assert_int_equal(read_at(k, BEGIN + HEAD - 1, &a), STATUS_PROTOCOL); /* a frame was handed out before its head was sent */
    assert_int_equal(read_at(k, BEGIN + HEAD + sizeof frame, &a), STATUS_PROTOCOL);
    keeper_frame(k, (long)strlen(text) - 4, -1);
    keeper_state(k)->ended = 1;
    keeper_frame(k, KEEPER_LAST, -1);
    const uint64_t at = keeper_state(k)->frame_at + BEGIN + HEAD;
    assert_lacks(k, at, "0\r\n\r\n", "");
    assert_lacks(k, at + 4, "\n", "");
    assert_int_equal(read_at(k, at, &a), STATUS_OK);
    assert_true(a.last_taken && a.ended && a.http == 200 && !a.need_head);
    kept_answer_fini(&a);
    keeper_close(k);
}

static struct keeper *whole(uint32_t http, size_t produced)
{
    struct keeper *k = journal(KEEPER_LENGTH);
    const struct keeper_reply reply = {http, 99};
    const struct keeper_part parts[] = {{&reply, sizeof reply}, {text, strlen(text)}};
    keeper_record_parts(k, KEEPER_REPLY, parts, 2);
    keeper_state(k)->produced = keeper_state(k)->handed = produced;
    keeper_state(k)->ended = 1;
    return k;
}

static void what_the_kernel_did_not_take_of_a_whole_answer_is_sent_again(void **state)
{
    struct keeper *k = whole(503, strlen(text));
    struct kept_answer a;
    (void)state;
    for (uint64_t i = 0; i <= strlen(text); i++)
        assert_lacks(k, BEGIN + HEAD + i, "", text + i);
    assert_int_equal(read_at(k, BEGIN + HEAD + 5, &a), STATUS_OK);
    assert_true(a.http == 503 && a.retry_after_s == 60 && a.handed == 5 && a.ended);
    kept_answer_fini(&a);
    assert_int_equal(read_at(k, BEGIN + HEAD + sizeof text, &a), STATUS_PROTOCOL);
    keeper_close(k);
}

static void an_answer_that_is_not_there_as_it_was_announced_is_refused(void **state)
{
    struct kept_answer a;
    struct keeper *k = journal(KEEPER_LENGTH);
    (void)state;
    assert_int_equal(read_at(k, BEGIN + HEAD, &a), STATUS_PROTOCOL); /* no answer */
    keeper_close(k);
    k = whole(503, strlen(text) - 1); /* another length than its head tells */
    assert_int_equal(read_at(k, BEGIN + HEAD, &a), STATUS_PROTOCOL);
    keeper_close(k);
    k = whole(99, strlen(text));
    assert_int_equal(read_at(k, BEGIN + HEAD, &a), STATUS_PROTOCOL);
    keeper_close(k);
    k = journal(KEEPER_CHUNKED);
    keeper_record(k, KEEPER_HEAD, head, 3); /* the last head is the one that counts, and it is shorter */
    assert_int_equal(read_at(k, BEGIN + 1, &a), STATUS_PROTOCOL);
    keeper_close(k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_was_said_so_all_of_it_comes),
        cmocka_unit_test(a_stream_goes_on_in_the_middle_of_its_head_and_of_a_frame),
        cmocka_unit_test(what_the_kernel_did_not_take_of_a_whole_answer_is_sent_again),
        cmocka_unit_test(an_answer_that_is_not_there_as_it_was_announced_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
