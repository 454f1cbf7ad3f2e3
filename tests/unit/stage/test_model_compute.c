/* Loading: what is assigned, what fits, what is refused by name; and what a tick may not be. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/check.h"
#include "common/base/log.h"
#include "common/model/split.h"
#include "stage/memory.h"
#include "stage/model_compute.h"
#include "tests/lib/chain.h"

#define MODEL SLUICE_VECTORS "/tiny/llama-q4_1.gguf"
enum { N_LAYERS = 3, N_VOCAB = 320, N_EMBD = 64 };

static struct compute *create(struct model_compute_options o)
{
    struct compute *c;
    struct error err;
    o.model_path = MODEL;
    if (model_compute_create(&o, &c, &err) != STATUS_OK)
        fail_msg("%s", err.message);
    return c;
}

static const struct model_compute_options quick = {.kv_fd = -1, .skip_calibration = 1};
static const struct msg_assign whole = {.n_stages = 1, .end_layer = N_LAYERS, .slots = 2, .context = 100, .kv_block = 32,
                                        .max_rows = 16, .kv_type = "f16"};

static enum status load(struct compute *c, struct msg_assign a, struct msg_loaded *out, struct error *err)
{
    return c->table->load(c, &a, out, err);
}

/* Loads `a` with so much memory, expects a refusal that says `word`. */
static void refused(struct model_compute_options o, struct msg_assign a, enum status want, const char *word)
{
    struct compute *c = create(o);
    struct msg_loaded loaded;
    struct error err;
    assert_int_equal(load(c, a, &loaded, &err), want);
    if (!strstr(err.message, word))
        fail_msg("\"%s\" does not say \"%s\"", err.message, word);
    c->table->destroy(c);
}

static void describe_says_what_the_model_is(void **state)
{
    (void)state;
    struct model_compute_options o = quick;
    o.memory_bytes = 123 << 20;
    struct compute *c = create(o);
    struct msg_hello hello = {0};
    c->table->describe(c, &hello);
    assert_int_equal(hello.n_layers, N_LAYERS);
    assert_int_equal(hello.memory_bytes, 123 << 20);
    assert_memory_equal(hello.model_hash, model_compute_model(c)->hash, 32);
    assert_true(strlen(hello.profile) > 0);
    assert_int_equal(strncmp(hello.profile, ops_numerics_profile(), sizeof hello.profile - 1), 0);
    assert_int_equal(strncmp(c->table->backend, "cpu/", 4), 0);
    c->table->destroy(c);
}

static void the_pool_is_what_was_asked_for_or_every_slots_context(void **state)
{
    (void)state;
    const uint64_t block_bytes = (uint64_t)N_LAYERS * 2 * 4 * 16 * 32; /* layers, KV heads, bytes, head size, positions */
    struct compute *c = create(quick);
    struct msg_loaded loaded;
    struct msg_assign a = whole;
    assert_int_equal(load(c, a, &loaded, NULL), STATUS_OK);
    assert_int_equal(loaded.n_blocks, 2 * 4); /* 100 positions take four blocks of 32 */
    assert_int_equal(loaded.kv_bytes, 8 * block_bytes);
    a.kv_bytes = 5 * block_bytes + 17;
    assert_int_equal(load(c, a, &loaded, NULL), STATUS_OK);
    assert_int_equal(loaded.n_blocks, 5);
    a.n_blocks = 3;
    assert_int_equal(load(c, a, &loaded, NULL), STATUS_OK);
    assert_int_equal(loaded.n_blocks, 3);
    assert_int_equal(c->table->width(c), N_EMBD);
    c->table->destroy(c);
}

static void an_automatic_pool_takes_at_most_half_of_the_memory(void **state)
{
    (void)state;
    struct model_compute_options o = quick;
    struct msg_assign a = whole;
    struct msg_loaded loaded;
    a.slots = 1000;
    a.context = 512;
    o.memory_bytes = 100 << 20;
    struct compute *c = create(o);
    assert_int_equal(load(c, a, &loaded, NULL), STATUS_OK);
    assert_true(loaded.kv_bytes <= 50 << 20 && loaded.kv_bytes > 49 << 20);
    assert_true(loaded.n_blocks < 1000 * 16);
    c->table->destroy(c);
}

/* After a restart the pool itself is what is no longer free. */
static void a_kept_pool_keeps_its_size_though_less_is_free(void **state)
{
    (void)state;
    struct model_compute_options o = quick;
    struct msg_assign a = whole;
    struct msg_loaded loaded[2];
    uint64_t id[2];
    a.slots = 1000;
    a.context = 512;
    o.kv_fd = memfd_create("test-kv", MFD_CLOEXEC);
    o.memory_bytes = 100 << 20;
    for (int life = 0; life < 2; life++) {
        struct compute *c = create(o);
        assert_int_equal(load(c, a, &loaded[life], NULL), STATUS_OK);
        id[life] = kv_pool_id(c->pool);
        o.memory_bytes -= loaded[life].kv_bytes;
        c->table->destroy(c);
    }
    assert_int_equal(loaded[0].n_blocks, loaded[1].n_blocks);
    assert_true(id[0] == id[1]);
    a.slots = 10; /* fewer than it has room for: a pool of another size */
    o.memory_bytes = 100 << 20;
    struct compute *c = create(o);
    assert_int_equal(load(c, a, &loaded[1], NULL), STATUS_OK);
    assert_int_equal(loaded[1].n_blocks, 10 * 16);
    assert_true(kv_pool_id(c->pool) != id[0]);
    c->table->destroy(c);
    close(o.kv_fd);
}

static void what_does_not_fit_is_refused_with_both_figures(void **state)
{
    (void)state;
    struct model_compute_options o = quick;
    struct msg_assign a = whole;
    o.memory_bytes = 64 << 20;
    a.n_blocks = 10000;
    refused(o, a, STATUS_OUT_OF_MEMORY, "of 64.0 MiB: --kv-blocks ");
    a.n_blocks = 0;
    a.context = 2000000;
    refused(o, a, STATUS_OUT_OF_MEMORY, "of 64.0 MiB: --context ");
    a.kv_bytes = 1; /* not one block */
    refused(o, a, STATUS_OUT_OF_MEMORY, "0 blocks");
}

static void assignments_that_cannot_be_are_refused_by_name(void **state)
{
    (void)state;
    struct msg_assign a = whole;
    strcpy(a.kv_type, "q8_0");
    refused(quick, a, STATUS_UNSUPPORTED, "KV type q8_0");
    a = whole;
    a.end_layer = 4;
    refused(quick, a, STATUS_PROTOCOL, "layers 0..4 assigned of a model that has 3");
    a.end_layer = 0;
    refused(quick, a, STATUS_PROTOCOL, "layers 0..0");
    a = whole;
    a.kv_block = 48;
    refused(quick, a, STATUS_PROTOCOL, "48 positions");
    a = whole;
    a.stage = 1;
    refused(quick, a, STATUS_PROTOCOL, "stage 1 of 1");
    a = whole;
    a.max_rows = 0;
    refused(quick, a, STATUS_PROTOCOL, "0 rows");
}

static void a_missing_model_or_backend_is_an_error_of_create(void **state)
{
    (void)state;
    struct compute *c = NULL;
    struct error err;
    struct model_compute_options o = quick;
    o.model_path = "/nonexistent/model.gguf";
    assert_int_not_equal(model_compute_create(&o, &c, &err), STATUS_OK);
    assert_non_null(strstr(err.message, "/nonexistent/model.gguf"));
    o.model_path = MODEL;
    o.backend = "cuda";
    assert_int_equal(model_compute_create(&o, &c, &err), STATUS_CONFIG);
    o.backend = "cpu";
    o.isa = "no-such-set";
    assert_int_equal(model_compute_create(&o, &c, &err), STATUS_CONFIG);
    assert_null(c);
}

static struct tick one_row(struct tick_row *row, struct tick_sample *sample)
{
    static const uint32_t blocks[4] = {3, 1, 0, 2};
    *row = (struct tick_row){.blocks = blocks, .id = 5};
    *sample = (struct tick_sample){.sampler = &chain_greedy, .id = -2};
    return (struct tick){.n_rows = 1, .n_samples = 1, .rows = row, .samples = sample};
}

static void ticks_that_break_the_contract_fail_whole(void **state)
{
    (void)state;
    struct compute *c = create(quick);
    struct msg_loaded loaded;
    struct tick_row row;
    struct tick_sample sample;
    struct error err;
    struct tick t = one_row(&row, &sample);
    assert_int_equal(c->table->run(c, &t, &err), STATUS_STAGE); /* nothing is loaded */
    assert_int_equal(load(c, whole, &loaded, NULL), STATUS_OK);
    row.id = N_VOCAB;
    assert_int_equal(c->table->run(c, &t, &err), STATUS_STAGE);
    assert_non_null(strstr(err.message, "token 320 in a vocabulary of 320"));
    row.id = 5;
    row.position = 100;
    assert_int_equal(c->table->run(c, &t, &err), STATUS_STAGE);
    row.position = 0;
    t.n_rows = 17;
    assert_int_equal(c->table->run(c, &t, &err), STATUS_STAGE);
    t.n_rows = 1;
    sample.row = 1;
    assert_int_equal(c->table->run(c, &t, &err), STATUS_STAGE);
    sample.row = 0;
    assert_int_equal(sample.id, -2);
    assert_int_equal(c->table->run(c, &t, &err), STATUS_OK);
    assert_in_range(sample.id, 0, N_VOCAB - 1);
    assert_int_equal(sample.bad_logits, 0);
    c->table->destroy(c);
}

static void a_middle_stage_needs_rows_in_and_room_for_rows_out(void **state)
{
    (void)state;
    struct compute *c = create(quick);
    struct msg_assign a = whole;
    struct msg_loaded loaded;
    struct tick_row row;
    struct tick_sample sample;
    float in[N_EMBD] = {1, 2, 3}, out[N_EMBD];
    a.stage = 1;
    a.n_stages = 3;
    a.first_layer = 1;
    a.end_layer = 2;
    assert_int_equal(load(c, a, &loaded, NULL), STATUS_OK);
    struct tick t = one_row(&row, &sample);
    t.n_samples = 0;
    assert_int_equal(c->table->run(c, &t, NULL), STATUS_STAGE);
    t.in = in;
    assert_int_equal(c->table->run(c, &t, NULL), STATUS_STAGE);
    t.out = out;
    uint64_t before = atomic_load(&c->progress);
    assert_int_equal(c->table->run(c, &t, NULL), STATUS_OK);
    assert_int_equal(atomic_load(&c->progress) - before, 1); /* one layer */
    c->table->destroy(c);
}

static void a_stage_holds_only_its_own_layers(void **state)
{
    (void)state;
    uint64_t sum = 0;
    struct msg_loaded loaded;
    struct compute *c = create(quick);
    assert_int_equal(load(c, whole, &loaded, NULL), STATUS_OK);
    uint64_t all = loaded.weight_bytes;
    for (uint32_t i = 0; i < N_LAYERS; i++) {
        struct msg_assign a = whole;
        a.stage = i;
        a.n_stages = N_LAYERS;
        a.first_layer = i;
        a.end_layer = i + 1;
        assert_int_equal(load(c, a, &loaded, NULL), STATUS_OK);
        assert_true(loaded.weight_bytes < all / 2);
        sum += loaded.weight_bytes;
    }
    assert_in_range(sum, all, all + 4096); /* the rope table is in each */
    c->table->destroy(c);
}

static void the_same_assignment_again_keeps_what_is_loaded(void **state)
{
    (void)state;
    struct compute *c = create(quick);
    struct msg_loaded loaded;
    struct msg_assign a = whole;
    struct tick_row row;
    struct tick_sample sample, other;
    assert_int_equal(load(c, a, &loaded, NULL), STATUS_OK);
    struct tick t = one_row(&row, &sample);
    assert_int_equal(c->table->run(c, &t, NULL), STATUS_OK);
    a.heartbeat_ms = 77; /* no reason to load again */
    assert_int_equal(load(c, a, &loaded, NULL), STATUS_OK);
    a.slots = 3; /* one */
    assert_int_equal(load(c, a, &loaded, NULL), STATUS_OK);
    assert_int_equal(loaded.n_blocks, 12);
    t = one_row(&row, &other);
    assert_int_equal(c->table->run(c, &t, NULL), STATUS_OK);
    assert_int_equal(sample.id, other.id);
    a.end_layer = 9; /* a bad one leaves the good one in place */
    assert_int_equal(load(c, a, &loaded, NULL), STATUS_PROTOCOL);
    assert_int_equal(c->table->run(c, &t, NULL), STATUS_OK);
    c->table->destroy(c);
}

/* A pool on a descriptor survives its stage: the next one reads the keys and values that it finds. */
static void a_given_descriptor_keeps_the_pool_over_a_restart(void **state)
{
    (void)state;
    struct model_compute_options o = quick;
    int32_t drawn[2];
    o.kv_fd = memfd_create("test-kv", MFD_CLOEXEC);
    for (int life = 0; life < 2; life++) {
        struct compute *c = create(o);
        struct msg_loaded loaded;
        struct tick_row row;
        struct tick_sample sample;
        assert_int_equal(load(c, whole, &loaded, NULL), STATUS_OK);
        struct tick t = one_row(&row, &sample);
        for (uint32_t p = life ? 9 : 0; p < 10; p++) { /* the second life reads the last position only */
            row.position = p;
            row.id = 11 * p + 3;
            assert_int_equal(c->table->run(c, &t, NULL), STATUS_OK);
        }
        drawn[life] = sample.id;
        struct stat st;
        assert_int_equal(fstat(o.kv_fd, &st), 0);
        assert_int_equal(st.st_size, KV_HEADER_BYTES + loaded.kv_bytes);
        c->table->destroy(c);
    }
    assert_int_equal(drawn[0], drawn[1]);
    close(o.kv_fd);
}

static void calibration_fills_the_cost_table(void **state)
{
    (void)state;
    struct model_compute_options o = quick;
    struct msg_loaded loaded;
    struct msg_assign a = whole;
    o.skip_calibration = 0;
    o.n_threads = 2;
    a.max_rows = 96;
    struct compute *c = create(o);
    assert_int_equal(load(c, a, &loaded, NULL), STATUS_OK);
    const uint32_t sizes[] = {1, 2, 4, 8, 16, 32, 64, 96};
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        assert_int_equal(loaded.cost_rows[i], sizes[i]);
        assert_true(loaded.prompt_us[i] > 0 && loaded.decode_us[i] > 0);
    }
    assert_int_equal(loaded.cost_rows[ARRAY_LEN(sizes)], 0);
    assert_true(loaded.attention_ns >= 0);
    c->table->destroy(c);
}

/* --- a file that changes -------------------------------------------------------------------------------------------------- */

static void write_copy(const char *path)
{
    char block[4096];
    FILE *in = fopen(MODEL, "r"), *out = fopen(path, "r+");
    assert_true(in && out);
    for (size_t n; (n = fread(block, 1, sizeof block, in)) > 0;)
        assert_int_equal(fwrite(block, 1, n, out), n);
    fclose(in);
    assert_int_equal(fclose(out), 0);
}

/* Not now: two writes within a tick of the clock have the same time. */
static void write_byte(const char *path, long at)
{
    const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = 1000000000}};
    FILE *f = fopen(path, "r+");
    assert_non_null(f);
    assert_int_equal(fseek(f, at, SEEK_SET), 0);
    fputc(1, f);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}

/* A middle stage has all that it needs of the file; one with the embedding, or a backend that packs nothing, reads on. */
static void a_model_file_that_is_written_to_fails_the_ticks_that_read_it(void **state)
{
    (void)state;
    static const struct {
        const char *backend;
        uint32_t stage;
        enum status want;
    } cases[] = {{"cpu", 0, STATUS_BAD_MODEL}, {"cpu", 1, STATUS_OK}, {"ref", 1, STATUS_BAD_MODEL}};
    float rows[2][N_EMBD] = {{1}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char path[] = "/tmp/sluice-model-XXXXXX", away[64];
        const int fd = mkstemp(path);
        struct model_compute_options o = quick;
        struct msg_assign a = whole;
        struct msg_loaded loaded;
        struct compute *c;
        struct tick_row row;
        struct tick_sample sample;
        struct error err = {0};
        assert_true(fd >= 0);
        close(fd);
        write_copy(path);
        o.model_path = path;
        o.backend = cases[i].backend;
        assert_int_equal(model_compute_create(&o, &c, &err), STATUS_OK);
        a.n_stages = 3;
        a.stage = cases[i].stage;
        a.first_layer = a.stage;
        a.end_layer = a.stage + 1;
        assert_int_equal(load(c, a, &loaded, &err), STATUS_OK);
        struct tick t = one_row(&row, &sample);
        t.n_samples = 0;
        t.in = rows[0];
        t.out = rows[1];
        snprintf(away, sizeof away, "%s-away", path);
        assert_int_equal(rename(path, away), 0);
        assert_int_equal(c->table->run(c, &t, &err), STATUS_OK);
        write_byte(away, 5000);
        assert_int_equal(c->table->run(c, &t, &err), cases[i].want);
        if (cases[i].want != STATUS_OK)
            assert_non_null(strstr(err.message, "the model file was written to while it is in use"));
        a.slots = 1;
        assert_int_equal(load(c, a, &loaded, &err), STATUS_BAD_MODEL);
        c->table->destroy(c);
        unlink(away);
    }
}

/* --- memory_available --------------------------------------------------------------------------------------------------- */

static void put(const char *root, const char *path, const char *text)
{
    char full[512];
    snprintf(full, sizeof full, "%s%s", root, path);
    for (char *slash = full + strlen(root) + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = 0;
        mkdir(full, 0700);
        *slash = '/';
    }
    FILE *f = fopen(full, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void free_memory_is_the_least_of_the_host_and_of_every_group(void **state)
{
    (void)state;
    char root[] = "/tmp/sluice-memory-XXXXXX", command[64];
    assert_non_null(mkdtemp(root));
    assert_int_equal(memory_available(root), 0);
    put(root, "/proc/meminfo", "MemTotal:       2000000 kB\nMemFree:  1 kB\nMemAvailable:    1000000 kB\n");
    assert_int_equal(memory_available(root), 1000000ull * 1024);
    put(root, "/proc/self/cgroup", "0::/a/b\n");
    put(root, "/sys/fs/cgroup/a/b/memory.max", "max\n");
    put(root, "/sys/fs/cgroup/a/memory.max", "500000000\n");
    put(root, "/sys/fs/cgroup/a/memory.current", "200000000\n");
    put(root, "/sys/fs/cgroup/a/memory.stat", "anon 100\ninactive_file 50000000\n");
    assert_int_equal(memory_available(root), 350000000);
    put(root, "/proc/self/cgroup", "9:cpu:/\n4:memory:/x\n");
    put(root, "/sys/fs/cgroup/memory/x/memory.limit_in_bytes", "300000000\n");
    put(root, "/sys/fs/cgroup/memory/x/memory.usage_in_bytes", "310000000\n");
    put(root, "/sys/fs/cgroup/memory/x/memory.stat", "total_inactive_file 20000000\n");
    assert_int_equal(memory_available(root), 10000000);
    snprintf(command, sizeof command, "rm -r %s", root);
    assert_int_equal(system(command), 0);
    assert_true(memory_available("") > 0);
}

static void what_a_process_may_map_is_its_limit_less_what_it_has_mapped(void **state)
{
    (void)state;
    enum { MIB = 1 << 20 };
    struct rlimit before, limit;
    assert_int_equal(getrlimit(RLIMIT_AS, &before), 0);
    if (before.rlim_cur == RLIM_INFINITY)
        assert_true(memory_mappable("") == UINT64_MAX);
    char root[] = "/tmp/sluice-memory-XXXXXX", command[64], statm[64];
    assert_non_null(mkdtemp(root));
    snprintf(statm, sizeof statm, "%lld 17 1 1 0 1 0\n", 300ll * MIB / sysconf(_SC_PAGESIZE));
    put(root, "/proc/self/statm", statm);
    limit = (struct rlimit){.rlim_cur = 1ull << 60, .rlim_max = before.rlim_max}; /* binds nobody here */
    assert_int_equal(setrlimit(RLIMIT_AS, &limit), 0);
    assert_true(memory_mappable(root) == (1ull << 60) - 300ull * MIB);
    put(root, "/proc/self/statm", "1000000000000000 17 1 1 0 1 0\n");
    assert_true(memory_mappable(root) == 1);
    assert_int_equal(setrlimit(RLIMIT_AS, &before), 0);
    snprintf(command, sizeof command, "rm -r %s", root);
    assert_int_equal(system(command), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(describe_says_what_the_model_is),
        cmocka_unit_test(the_pool_is_what_was_asked_for_or_every_slots_context),
        cmocka_unit_test(an_automatic_pool_takes_at_most_half_of_the_memory),
        cmocka_unit_test(a_kept_pool_keeps_its_size_though_less_is_free),
        cmocka_unit_test(what_does_not_fit_is_refused_with_both_figures),
        cmocka_unit_test(assignments_that_cannot_be_are_refused_by_name),
        cmocka_unit_test(a_missing_model_or_backend_is_an_error_of_create),
        cmocka_unit_test(ticks_that_break_the_contract_fail_whole),
        cmocka_unit_test(a_middle_stage_needs_rows_in_and_room_for_rows_out),
        cmocka_unit_test(a_stage_holds_only_its_own_layers),
        cmocka_unit_test(the_same_assignment_again_keeps_what_is_loaded),
        cmocka_unit_test(a_given_descriptor_keeps_the_pool_over_a_restart),
        cmocka_unit_test(calibration_fills_the_cost_table),
        cmocka_unit_test(a_model_file_that_is_written_to_fails_the_ticks_that_read_it),
        cmocka_unit_test(free_memory_is_the_least_of_the_host_and_of_every_group),
        cmocka_unit_test(what_a_process_may_map_is_its_limit_less_what_it_has_mapped),
    };
    log_set_levels("warn", NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
