/* Which template is chosen. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/text/chat_source.h"
#include "vocabulary_maker.h"

static struct vocabulary_maker maker;

/* A file with these templates, NULL: without. */
static struct gguf *with_templates(const char *own, const char *tool_use, const char *named, const char *named_text)
{
    struct gguf *g = NULL;
    struct error err;
    size_t len;
    vocabulary_maker_init(&maker);
    if (own)
        vocabulary_maker_text(&maker, "tokenizer.chat_template", own);
    if (tool_use)
        vocabulary_maker_text(&maker, "tokenizer.chat_template.tool_use", tool_use);
    if (named)
        vocabulary_maker_text(&maker, named, named_text);
    const void *bytes = vocabulary_maker_bytes(&maker, &len);
    if (gguf_open_memory(bytes, len, &g, &err) != STATUS_OK)
        fail_msg("%s", err.message);
    return g;
}

static void assert_text(struct text t, const char *want)
{
    assert_int_equal(t.len, strlen(want));
    assert_memory_equal(t.data, want, t.len);
}

static void end(struct gguf *g)
{
    gguf_close(g);
    vocabulary_maker_fini(&maker);
}

static void the_models_own_is_taken_and_its_second_one_for_tools(void **state)
{
    (void)state;
    struct chat_source s;
    struct error err;
    struct gguf *g = with_templates("own", "tools", NULL, NULL);
    assert_int_equal(chat_source_find(g, NULL, &s, &err), STATUS_OK);
    assert_text(s.text, "own");
    assert_text(s.tools, "tools");
    assert_true(s.is_own);
    end(g);
    g = with_templates("own", NULL, "tokenizer.chat_template.rag", "rag");
    assert_int_equal(chat_source_find(g, NULL, &s, &err), STATUS_OK);
    assert_int_equal(s.tools.len, 0);
    end(g);
    g = with_templates(NULL, "tools", "tokenizer.chat_template.default", "default");
    assert_int_equal(chat_source_find(g, NULL, &s, &err), STATUS_OK);
    assert_text(s.text, "default");
    assert_text(s.tools, "tools");
    end(g);
    g = with_templates(NULL, "tools", NULL, NULL);
    assert_int_equal(chat_source_find(g, NULL, &s, &err), STATUS_OK);
    assert_text(s.text, "tools");
    end(g);
}

static void without_one_and_without_a_choice_there_is_none(void **state)
{
    (void)state;
    struct chat_source s;
    struct error err;
    struct gguf *g = with_templates(NULL, NULL, NULL, NULL);
    assert_int_equal(chat_source_find(g, NULL, &s, &err), STATUS_UNSUPPORTED);
    assert_int_equal(chat_source_find(g, "chatml", &s, &err), STATUS_OK);
    assert_false(s.is_own);
    end(g);
    g = with_templates("", NULL, NULL, NULL);
    assert_int_equal(chat_source_find(g, NULL, &s, &err), STATUS_UNSUPPORTED);
    end(g);
}

static void a_choice_goes_before_the_models_own(void **state)
{
    (void)state;
    struct chat_source s;
    struct error err;
    struct gguf *g = with_templates("own", "tools", "tokenizer.chat_template.rag", "rag");
    assert_int_equal(chat_source_find(g, "llama3", &s, &err), STATUS_OK);
    assert_text(s.text, chat_builtin("llama3"));
    assert_int_equal(s.tools.len, 0);
    assert_int_equal(chat_source_find(g, "rag", &s, &err), STATUS_OK);
    assert_text(s.text, "rag");
    assert_int_equal(chat_source_find(g, "tool_use", &s, &err), STATUS_OK);
    assert_text(s.text, "tools");
    assert_int_equal(chat_source_find(g, "no such", &s, &err), STATUS_CONFIG);
    assert_non_null(strstr(err.message, "'no such'"));
    assert_non_null(strstr(err.message, "chatml, "));
    end(g);
}

static void a_file_is_read_whole_or_refused_by_its_name(void **state)
{
    (void)state;
    struct chat_source s = {0};
    struct error err;
    struct gguf *g = with_templates(NULL, NULL, NULL, NULL);
    char path[] = "/tmp/sluice-template-XXXXXX", choice[64];
    int fd = mkstemp(path);
    snprintf(choice, sizeof choice, "@%s", path);
    assert_int_equal(chat_source_find(g, choice, &s, &err), STATUS_CONFIG);
    assert_non_null(strstr(err.message, "empty"));
    assert_int_equal(write(fd, "{{ a\0b }}", 9), 9);
    assert_int_equal(chat_source_find(g, choice, &s, &err), STATUS_OK);
    assert_int_equal(s.text.len, 9);
    assert_memory_equal(s.text.data, "{{ a\0b }}", 9);
    chat_source_free(&s);
    assert_int_equal(ftruncate(fd, (1 << 20) + 1), 0);
    assert_int_equal(chat_source_find(g, choice, &s, &err), STATUS_CONFIG);
    assert_non_null(strstr(err.message, "1 MiB"));
    close(fd);
    unlink(path);
    assert_int_equal(chat_source_find(g, choice, &s, &err), STATUS_CONFIG);
    assert_non_null(strstr(err.message, path));
    assert_int_equal(chat_source_find(g, "@/", &s, &err), STATUS_CONFIG);
    end(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_models_own_is_taken_and_its_second_one_for_tools),
        cmocka_unit_test(without_one_and_without_a_choice_there_is_none),
        cmocka_unit_test(a_choice_goes_before_the_models_own),
        cmocka_unit_test(a_file_is_read_whole_or_refused_by_its_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
