#include "common/text/detokenizer.h"

#include "common/text/tokenizer_impl.h"
#include "common/base/utf8.h"

#define REPLACEMENT "\xef\xbf\xbd"

void detokenizer_init(struct detokenizer *d, const struct tokenizer *t, int show_special)
{
    *d = (struct detokenizer){.tokenizer = t, .show_special = show_special};
}

void detokenizer_init_text(struct detokenizer *d, const struct tokenizer *t, int show_special)
{
    detokenizer_init(d, t, show_special);
    d->undo_prefix = d->at_start = tokenizer__space_prefix(t);
}

/* One byte. A character that breaks off becomes one U+FFFD for the longest start that was well-formed (Unicode,
 * "substitution of maximal subparts"), and the byte that broke it is looked at anew. */
static enum status feed(struct detokenizer *d, unsigned char byte, struct buf *out)
{
    unsigned total;
    if (d->n_held && !utf8_accepts(d->held, d->n_held, byte, &total)) {
        d->n_held = 0;
        TRY(buf_text(out, REPLACEMENT));
    }
    if (d->n_held == 0 && !utf8_accepts(d->held, 0, byte, &total))
        return buf_text(out, REPLACEMENT);
    d->held[d->n_held++] = byte;
    if (d->n_held < total)
        return STATUS_OK;
    d->n_held = 0;
    return buf_append(out, d->held, total);
}

enum status detokenizer_push(struct detokenizer *d, uint32_t id, struct buf *out)
{
    if (id >= tokenizer_n_vocab(d->tokenizer))
        return STATUS_BAD_REQUEST;
    struct text piece = tokenizer_piece(d->tokenizer, id, d->show_special);
    size_t i = d->at_start && piece.len && piece.data[0] == ' ' && !tokenizer__starts_text(d->tokenizer, id);
    if (d->undo_prefix)
        d->at_start = tokenizer__starts_text(d->tokenizer, id);
    for (; i < piece.len; i++)
        TRY(feed(d, (unsigned char)piece.data[i], out));
    return STATUS_OK;
}

enum status detokenizer_finish(struct detokenizer *d, struct buf *out)
{
    if (d->n_held == 0)
        return STATUS_OK;
    d->n_held = 0;
    return buf_text(out, REPLACEMENT);
}
