/* common/model/hparams_impl.h - between hparams.c (the keys of a file) and model.c (its tensors). Threading: pure. */
#ifndef SLUICE_COMMON_MODEL_HPARAMS_IMPL_H
#define SLUICE_COMMON_MODEL_HPARAMS_IMPL_H

#include <string.h>

#include "common/model/hparams.h"

static inline int text_is(struct text t, const char *s)
{
    return t.len == strlen(s) && memcmp(t.data, s, t.len) == 0;
}

/* Everything but n_vocab and tied_head, which follow from tensors. Refuses by name what would change the results and is not
 * computed. */
enum status hparams_read(const struct gguf *g, struct hparams *out, struct error *err);

/* The tensors that every layer must and may have; bit i: enum layer_tensor i. */
uint32_t hparams_required(const struct hparams *hp);

#endif
