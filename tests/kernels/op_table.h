/* tests/kernels/op_table.h - one table of the operations of kernels/ops.h that drives correctness, tolerance and speed.
 *
 * Purpose    An entry makes inputs for a shape from a seed (the same for every backend), runs its operation on a thread of a
 *            team, and shows the output. test_ops.c compares every instruction set with ref; bench_kernels.c times them.
 * Ownership  op_create/op_destroy; the output belongs to the op.
 * Threading  op_run as ops.h says; the rest one thread.
 */
#ifndef SLUICE_TESTS_KERNELS_OP_TABLE_H
#define SLUICE_TESTS_KERNELS_OP_TABLE_H

#include "kernels/ops.h"
#include "kernels/team.h"

/* What an entry does not use stays 0. */
struct op_shape {
    enum tensor_type type;
    uint32_t rows, n, k;
    uint32_t n_heads, n_kv_heads, head_dim, block_positions, window, position; /* of the first row */
    uint32_t n_sequences; /* attention: rows are dealt to so many sequences in runs; 0: 1 */
    int kind;     /* enum gate_kind, enum rope_pairing, or whether there is something to add */
    float softcap; /* attention: 0 for none */
    int special;  /* NaN, infinite, tiny and zero inputs among the others */
};

struct op;

struct op_entry {
    const char *name;
    double tolerance; /* relative to ref; 0: the same bits, NaN for NaN */
    void (*create)(struct op *op);
    void (*run)(struct op *op, int thread, int n_threads);
    double (*flops)(const struct op_shape *s); /* multiplications and additions of one run; NULL: not counted */
};

struct op {
    const struct op_entry *entry;
    const struct ops *ops;
    struct op_shape s;
    uint64_t seed;
    struct weight w;
    struct acts acts;
    float *x, *x2, *x3; /* inputs */
    float *y;           /* output */
    size_t n_out;       /* floats */
    uint8_t *file, *pool, *scratch;
    uint32_t *blocks;
    struct kv_row *kv_rows;
    struct kv_view kv;
};

extern const struct op_entry op_entries[];
extern const int op_n_entries;
const struct op_entry *op_find(const char *name);

/* n_threads: the most that op_run will be called with. */
struct op *op_create(const struct op_entry *e, const struct ops *ops, const struct op_shape *s, uint64_t seed, int n_threads);
void op_destroy(struct op *op);
/* Runs on the team, inputs made anew where the operation works in place. */
void op_run(struct op *op, struct team *team);
/* Bytes of weights that one run reads. */
size_t op_weight_bytes(const struct op *op);

/* Rows of random blocks of any supported type, finite; every 7th Q8_0 block is -128 throughout. */
uint8_t *op_random_rows(enum tensor_type type, uint32_t n, uint32_t k, uint64_t seed);

#endif
