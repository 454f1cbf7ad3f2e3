#include "made.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static enum status open_it(struct made *m, struct error *err)
{
    size_t len;
    const void *bytes = vocabulary_maker_bytes(&m->maker, &len);
    m->t = NULL;
    assert_int_equal(gguf_open_memory(bytes, len, &m->gguf, err), STATUS_OK);
    return tokenizer_create(m->gguf, &m->t, err);
}

void made_must_open(struct made *m)
{
    struct error err = {0};
    if (open_it(m, &err) != STATUS_OK)
        fail_msg("%s", err.message);
}

void made_must_be_refused(struct made *m, const char *word, const char *word2)
{
    struct error err = {0};
    assert_int_equal(open_it(m, &err), STATUS_BAD_MODEL);
    if (!strstr(err.message, word) || !strstr(err.message, word2))
        fail_msg("\"%s\" does not say %s and %s", err.message, word, word2);
    unmake(m);
}

void unmake(struct made *m)
{
    tokenizer_destroy(m->t);
    gguf_close(m->gguf);
    vocabulary_maker_fini(&m->maker);
}
