/* deploy/cli/model.h - `sluice model FILE`: what is in a model file, how it would split, what it needs.
 *
 * Purpose    Reads a GGUF with the code that the service reads it with, and says what that would say: contents, tokenizer,
 *            template, the types of its tensors, the split over S stages with the memory of each, and everything for which the
 *            file would be refused, not the first thing alone. Starts no service and loads no weights.
 * Ownership  model_report_open/model_report_close; texts of a report point into the file.
 * Threading  Main thread.
 * Errors     model_report_open: STATUS_CONFIG (more stages than layers); a bad file is no error but a list of refusals.
 */
#ifndef SLUICE_DEPLOY_CLI_MODEL_H
#define SLUICE_DEPLOY_CLI_MODEL_H

#include <stdio.h>

#include "common/model/hparams.h"
#include "common/model/split.h"
#include "common/text/tokenizer.h"
#include "stage/memory_plan.h"

enum { MODEL_MAX_REFUSALS = 16, MODEL_MAX_TYPES = 48 };

struct model_options {
    const char *path;
    uint32_t stages, context, slots, kv_block; /* context 0: the model's */
    int json;
};

struct model_type_use {
    const char *name;
    const char *kernels; /* "int8", "as it is", "as F32", "refused" */
    uint32_t n_tensors;
    uint64_t bytes;      /* in the file */
};

struct model_stage_needs {
    uint64_t file_bytes;
    struct memory_needs needs;
    uint64_t kv_context; /* bytes of one sequence as long as the context */
    char fits[320];      /* "" where it does on this machine beside the other stages; else what the stage would say */
};

struct model_report {
    struct gguf *gguf;   /* NULL: not even that; the model's when is_model */
    struct model model;
    int is_model;
    struct tokenizer *tokenizer; /* NULL: refused, or none in the file */
    struct text name, architecture, vocabulary, pre;
    uint64_t n_tokens, n_parameters;
    char chat_template[400];     /* in words */
    struct model_type_use types[MODEL_MAX_TYPES];
    uint32_t n_types;
    char refusals[MODEL_MAX_REFUSALS][320];
    uint32_t n_refusals;
    /* Only where nothing is refused: */
    const char *profile, *backend;
    uint32_t context, threads;
    uint64_t free;               /* bytes on this machine; 0: not known */
    struct split split;
    struct model_stage_needs stages[MAX_STAGES];
};

enum status model_report_open(const struct model_options *o, struct model_report *r, struct error *err);
void model_report_close(struct model_report *r);
void model_report_print(const struct model_report *r, const struct model_options *o, FILE *f);
void model_report_json(const struct model_report *r, const struct model_options *o, FILE *f);

/* The command: EXIT_ASKED, EXIT_CONFIG, or 3 for a file that would be refused, each reason a line on stderr. */
int model_main(int argc, char **argv);

#endif
