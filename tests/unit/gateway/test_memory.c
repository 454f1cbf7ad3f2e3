/* FC-52 for the gateway's own part: the n-th allocation of a request fails, for all n. Linked with --wrap, so that ours and
 * jansson's allocations (which go through json_in) are counted. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "rpc/gateway/auth.h"
#include "rpc/gateway/json_in.h"
#include "rpc/gateway/openai.h"
#include "rpc/gateway/request.h"

void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t size);

static long countdown = -1; /* < 0: nothing fails */

static int fails(void)
{
    return countdown >= 0 && countdown-- == 0;
}

void *__wrap_malloc(size_t size)
{
    return fails() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t n, size_t size)
{
    return fails() ? NULL : __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t size)
{
    return fails() ? NULL : __real_realloc(p, size);
}

static const char chat[] =
    "{\"messages\":[{\"role\":\"system\",\"content\":null},{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
    "{\"type\":\"text\",\"text\":\"b\"}]}],\"model\":\"m\",\"stop\":[\"x\",\"y\"],\"priority\":\"batch\",\"tools\":[{\"a\":{}}],"
    "\"chat_template_kwargs\":{\"k\":[1,2.5]},\"reasoning_effort\":\"low\",\"user\":\"u\",\"seed\":5}";
static const char completion[] = "{\"prompt\":[1,2,3,4,5,6,7,8,9],\"stop\":\"s\",\"logit_bias\":{\"5\":1,\"6\":-2}}";

/* Parses with the n-th allocation failing, until one parse needs fewer. Returns how many were needed. */
static long fail_each(enum endpoint endpoint, const char *body)
{
    for (long n = 0; n < 10000; n++) {
        struct request r;
        struct error err = {0};
        countdown = n;
        request_init(&r, endpoint, strlen(body));
        enum status s = request_parse(&r, body, strlen(body), &err);
        long left = countdown;
        countdown = -1;
        request_fini(&r);
        if (left >= 0) {
            assert_int_equal(s, STATUS_OK);
            return n;
        }
        if (s != STATUS_OUT_OF_MEMORY)
            fail_msg("allocation %ld: %s: %s", n, status_name(s), err.message);
    }
    fail_msg("it never ends");
    return 0;
}

static void a_request_that_gets_no_memory_is_503_and_never_400(void **state)
{
    (void)state;
    assert_true(fail_each(ENDPOINT_CHAT, chat) > 40);
    assert_true(fail_each(ENDPOINT_COMPLETION, completion) > 10);
}

static void an_answer_that_gets_no_memory_is_marked_failed(void **state)
{
    struct answer_head h = {.endpoint = ENDPOINT_CHAT, .id = "i", .model = "m"};
    struct usage u = {0};
    (void)state;
    for (long n = 0;; n++) {
        struct buf b;
        buf_init(&b, 1 << 20);
        countdown = n;
        openai_answer_begin(&b, &h);
        openai_answer_choice(&b, &h, &(struct answer_part){.text = {"text", 4}, .finish = FINISH_STOP});
        openai_answer_end(&b, &h, &u);
        long left = countdown;
        countdown = -1;
        int failed = b.failed;
        buf_fini(&b);
        if (left >= 0) {
            assert_false(failed);
            assert_true(n >= 2);
            return;
        }
        assert_true(failed);
    }
}

static void keys_that_get_no_memory_are_refused(void **state)
{
    struct api_keys k;
    struct error err;
    (void)state;
    countdown = 0;
    enum status s = api_keys_parse("a b", 3, &k, &err);
    countdown = -1;
    assert_int_equal(s, STATUS_OUT_OF_MEMORY);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_that_gets_no_memory_is_503_and_never_400),
        cmocka_unit_test(an_answer_that_gets_no_memory_is_marked_failed),
        cmocka_unit_test(keys_that_get_no_memory_are_refused),
    };
    json_in_install();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
