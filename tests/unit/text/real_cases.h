/* tests/unit/text/real_cases.h - what the tokenizer of every real model must show.
 *
 * Purpose    The vectors of tests/vectors/tokenizer, ten thousand random texts there and back (FC-59), and a megabyte of one
 *            letter in time (FC-61). One test program a model.
 * Threading  One thread.
 * Errors     The result of a cmocka group; exits 77 when the model is not there.
 */
#ifndef SLUICE_TESTS_UNIT_TEXT_REAL_CASES_H
#define SLUICE_TESTS_UNIT_TEXT_REAL_CASES_H

#include "vectors.h"

struct real_model {
    const char *variable;   /* of the environment: path of the GGUF */
    const char *name;       /* of the vector files */
    int n_encode, n_decode; /* cases in them */
    void (*more)(const struct tokenizer *t); /* what is special about this one */
};

int real_cases_run(const struct real_model *model);

#endif
