/* The pool of KV blocks over processes: when its content is taken up again, when it is not, and what a kill leaves. */
#include "tests/unit/stage/cmocka_all.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "kernels/ops.h"
#include "stage/kv.h"

enum { N_BLOCKS = 10, IDENTITY_BYTES = 308 };

static struct kv_options some_options(int fd)
{
    struct kv_options o = {.n_blocks = N_BLOCKS, .fd = fd};
    memset(o.meaning.model_hash, 7, sizeof o.meaning.model_hash);
    strcpy(o.meaning.kv_type, "f16");
    strcpy(o.meaning.profile, "cpu/1");
    o.meaning.first_layer = 2;
    o.meaning.end_layer = 5;
    o.meaning.shape = (struct kv_shape){.n_layers = 3, .n_kv_heads = 2, .head_dim = 8, .block_positions = 16};
    return o;
}

static struct kv_pool open_pool(const struct kv_options *o)
{
    struct kv_pool p;
    struct error err = {0};
    if (kv_pool_open(o, &p, &err) != STATUS_OK)
        fail_msg("%s", err.message);
    return p;
}

static int make_fd(void)
{
    int fd = memfd_create("test-kv", MFD_CLOEXEC);
    assert_true(fd >= 0);
    return fd;
}

static int all_are(const struct kv_pool *p, int byte)
{
    for (size_t i = 0; i < p->bytes; i++)
        if (p->data[i] != byte)
            return 0;
    return 1;
}

/* Leaves a pool full of 0x5a with a watermark in fd; returns its id. */
static uint64_t leave_pool(int fd)
{
    const struct kv_options o = some_options(fd);
    struct kv_pool p = open_pool(&o);
    memset(p.data, 0x5a, p.bytes);
    kv_pool_mark(&p, &(struct kv_mark){11, 3, 77});
    uint64_t id = kv_pool_id(&p);
    kv_pool_close(&p);
    return id;
}

static void a_new_pool_is_zeroed_unmarked_and_named(void **state)
{
    (void)state;
    const struct kv_options o = some_options(-1);
    struct kv_pool p = open_pool(&o), q = open_pool(&o);
    assert_int_equal(p.bytes, N_BLOCKS * 3 * 2 * 4 * 8 * 16);
    assert_true(kv_pool_id(&p) && kv_pool_id(&q) && kv_pool_id(&p) != kv_pool_id(&q));
    assert_int_equal(kv_pool_watermark(&p).tick, 0);
    assert_int_equal(p.kept, 0);
    assert_true(all_are(&p, 0));
    kv_pool_close(&p);
    kv_pool_close(&q);
    kv_pool_close(&q); /* again changes nothing */
}

static void what_fits_is_taken_up_whole(void **state)
{
    (void)state;
    int fd = make_fd();
    uint64_t id = leave_pool(fd);
    const struct kv_options o = some_options(fd);
    assert_int_equal(kv_pool_kept_blocks(fd, &o.meaning), N_BLOCKS);
    for (int life = 0; life < 3; life++) {
        struct kv_pool p = open_pool(&o);
        const struct kv_mark m = kv_pool_watermark(&p);
        assert_int_equal(p.kept, 1);
        assert_int_equal(kv_pool_id(&p), id);
        assert_true(m.session == 11 && m.epoch == 3 && m.tick == 77);
        assert_true(all_are(&p, 0x5a));
        kv_pool_close(&p);
    }
    close(fd);
}

/* --- what is not taken up ----------------------------------------------------------------------------------------------------- */

static void other_model(struct kv_options *o) { o->meaning.model_hash[31]++; }
static void other_type(struct kv_options *o) { strcpy(o->meaning.kv_type, "q8_0"); }
static void other_profile(struct kv_options *o) { strcpy(o->meaning.profile, "cpu/2"); }
static void other_layers(struct kv_options *o) { o->meaning.first_layer++, o->meaning.end_layer++; }
static void other_heads(struct kv_options *o) { o->meaning.shape.n_kv_heads = 1, o->meaning.shape.head_dim = 16; }
static void other_block(struct kv_options *o) { o->meaning.shape.block_positions = 32, o->n_blocks /= 2; }
static void more_blocks(struct kv_options *o) { o->n_blocks++; }
static void fewer_blocks(struct kv_options *o) { o->n_blocks--; }

static void check_not_kept(const struct kv_options *o, uint64_t id, const char *what)
{
    struct kv_pool p = open_pool(o);
    if (p.kept || kv_pool_id(&p) == id || kv_pool_watermark(&p).tick || !all_are(&p, 0))
        fail_msg("%s: the pool is taken up", what);
    struct stat st;
    assert_int_equal(fstat(o->fd, &st), 0);
    assert_int_equal(st.st_size, KV_HEADER_BYTES + p.bytes);
    kv_pool_close(&p);
}

static void a_pool_of_anything_else_is_zeroed_and_named_anew(void **state)
{
    (void)state;
    static const struct {
        const char *what;
        void (*change)(struct kv_options *o);
    } changes[] = {{"model", other_model}, {"type", other_type},   {"profile", other_profile}, {"layers", other_layers},
                   {"heads", other_heads}, {"block", other_block}, {"more", more_blocks},      {"fewer", fewer_blocks}};
    for (unsigned i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        int fd = make_fd();
        uint64_t id = leave_pool(fd);
        struct kv_options o = some_options(fd);
        changes[i].change(&o);
        check_not_kept(&o, id, changes[i].what);
        const struct kv_options before = some_options(fd);
        check_not_kept(&before, id, "and back");
        close(fd);
    }
}

static void a_damaged_header_is_not_believed(void **state)
{
    (void)state;
    int fd = make_fd();
    for (int at = 0; at < IDENTITY_BYTES; at++) {
        uint64_t id = leave_pool(fd);
        uint8_t byte;
        assert_int_equal(pread(fd, &byte, 1, at), 1);
        byte ^= 0x10;
        assert_int_equal(pwrite(fd, &byte, 1, at), 1);
        const struct kv_options o = some_options(fd);
        assert_int_equal(kv_pool_kept_blocks(fd, &o.meaning), 0);
        check_not_kept(&o, id, "damage");
    }
    leave_pool(fd);
    assert_int_equal(ftruncate(fd, KV_HEADER_BYTES + 100), 0); /* the blocks are missing */
    const struct kv_options o = some_options(fd);
    check_not_kept(&o, 0, "a short file");
    close(fd);
}

static void a_descriptor_that_is_no_memory_is_refused(void **state)
{
    (void)state;
    struct kv_pool p;
    struct error err = {0};
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    const struct kv_options o = some_options(fd);
    assert_int_equal(kv_pool_kept_blocks(fd, &o.meaning), 0);
    assert_int_equal(kv_pool_open(&o, &p, &err), STATUS_IO);
    assert_non_null(strstr(err.message, "cannot size"));
    close(fd);
}

/* --- the watermark ------------------------------------------------------------------------------------------------------------- */

/* A process marks until it is killed; what it leaves must be a mark that it made, and never go back. */
static void a_kill_leaves_a_watermark_that_was_true(void **state)
{
    (void)state;
    int fd = make_fd();
    leave_pool(fd);
    const struct kv_options o = some_options(fd);
    uint64_t before = 0;
    for (int life = 1; life <= 20; life++) {
        pid_t pid = fork();
        if (pid == 0) {
            struct kv_pool p;
            if (kv_pool_open(&o, &p, NULL) != STATUS_OK)
                _exit(1);
            for (uint64_t n = before + 1;; n++)
                kv_pool_mark(&p, &(struct kv_mark){n, 3 * n, 5 * n});
        }
        usleep(3000 + 500 * (useconds_t)life);
        kill(pid, SIGKILL);
        int end;
        assert_int_equal(waitpid(pid, &end, 0), pid);
        assert_true(WIFSIGNALED(end));
        struct kv_pool p = open_pool(&o);
        const struct kv_mark m = kv_pool_watermark(&p);
        assert_true(p.kept);
        if (before || m.session != 11) { /* the first child may not have come so far */
            assert_true(m.epoch == 3 * m.session && m.tick == 5 * m.session);
            assert_true(m.session >= before);
            before = m.session;
        }
        kv_pool_close(&p);
    }
    assert_true(before > 1000);
    close(fd);
}

/* --- costs and time ------------------------------------------------------------------------------------------------------------- */

static struct kv_costs some_costs(void)
{
    struct kv_costs c;
    memset(&c, 0, sizeof c);
    c.max_rows = 64;
    c.slots = 8;
    c.context = 1024;
    c.n_threads = 2;
    c.has_head = 1;
    strcpy(c.backend, "cpu/avx2");
    return c;
}

static void costs_are_kept_for_the_same_kind_of_ticks_only(void **state)
{
    (void)state;
    int fd = make_fd();
    const struct kv_options o = some_options(fd);
    struct kv_pool p = open_pool(&o);
    struct kv_costs c = some_costs(), found = c;
    assert_int_equal(kv_pool_costs(&p, &found), 0);
    c.measured.cost_rows[0] = 1;
    c.measured.prompt_us[0] = 900;
    c.measured.attention_ns = 1.5;
    kv_pool_keep_costs(&p, &c);
    kv_pool_close(&p);
    p = open_pool(&o);
    assert_int_equal(kv_pool_costs(&p, &found), 1);
    assert_int_equal(found.measured.prompt_us[0], 900);
    assert_true(found.measured.attention_ns == 1.5);
    found = some_costs();
    found.n_threads = 1;
    assert_int_equal(kv_pool_costs(&p, &found), 0);
    found = some_costs();
    strcpy(found.backend, "ref");
    assert_int_equal(kv_pool_costs(&p, &found), 0);
    kv_pool_close(&p);
    close(fd);
}

static void a_kept_pool_costs_no_time(void **state)
{
    (void)state;
    int fd = make_fd();
    struct kv_options o = some_options(fd);
    o.n_blocks = (64u << 20) / (uint32_t)kv_block_bytes(&o.meaning.shape);
    int64_t ns[2];
    for (int i = 0; i < 2; i++) {
        int64_t start_ns = clock_now_ns();
        struct kv_pool p = open_pool(&o);
        ns[i] = clock_now_ns() - start_ns;
        assert_int_equal(p.kept, i);
        kv_pool_close(&p);
    }
    print_message("a pool of 64 MiB: new %lld us, kept %lld us\n", (long long)(ns[0] / NS_PER_US), (long long)(ns[1] / NS_PER_US));
    assert_true(3 * ns[1] < ns[0]);
    close(fd);
}

static void a_lazy_pool_takes_pages_when_they_are_written(void **state)
{
    (void)state;
    int fd = make_fd();
    struct kv_options o = some_options(fd);
    o.n_blocks = (16u << 20) / (uint32_t)kv_block_bytes(&o.meaning.shape);
    o.lazy = 1;
    struct kv_pool p = open_pool(&o);
    assert_true(kv_fd_resident(fd) < 1 << 20);
    p.data[p.bytes - 1] = 1;
    kv_pool_close(&p);
    p = open_pool(&o);
    assert_true(p.kept && p.data[p.bytes - 1] == 1);
    kv_pool_close(&p);
    close(fd);
}

/* Layers 0, 1, 3 of 4 see a window: rows of one layer and block never touch those of another. */
static void layers_with_a_window_have_blocks_of_their_own(void **state)
{
    (void)state;
    struct kv_options o = some_options(-1);
    o.n_blocks = 40;
    o.meaning.shape.n_layers = 4;
    o.meaning.shape.window = (struct kv_window){.window = 20, .kv_block = 16, .slots = 2, .context = 200, .max_rows = 4, .ticks = 2};
    o.meaning.shape.window_layers[0] = 1 | 2 | 8;
    struct kv_pool p = open_pool(&o);
    const size_t layer_bytes = kv_layer_bytes(&p.shape);
    assert_int_equal(p.n_window, kv_window_blocks(&p.shape.window, 40));
    assert_true(p.n_window > 5 && p.n_window < 40);
    assert_int_equal(kv_block_bytes(&p.shape), layer_bytes);
    assert_int_equal(kv_window_block_bytes(&p.shape), 3 * layer_bytes);
    assert_int_equal(p.bytes, (40 + 3 * p.n_window) * layer_bytes);
    for (uint32_t layer = 0; layer < 4; layer++) {
        const struct kv_view v = kv_pool_view(&p, layer);
        const uint32_t n = kv_pool_is_window(&p, layer) ? p.n_window : 40;
        assert_int_equal(kv_pool_is_window(&p, layer), layer != 2);
        for (uint32_t b = 0; b < n; b++) {
            uint8_t *at = v.pool + b * v.block_stride + v.layer_offset;
            assert_true(at >= p.data && at + layer_bytes <= p.data + p.bytes);
            for (size_t i = 0; i < layer_bytes; i++)
                assert_int_equal(at[i], 0); /* nobody's yet */
            memset(at, 0x5a, layer_bytes);
        }
    }
    assert_true(all_are(&p, 0x5a)); /* nothing is between them */
    kv_pool_close(&p);
}

static void a_pool_of_another_window_is_not_taken_up(void **state)
{
    (void)state;
    int fd = make_fd();
    struct kv_options o = some_options(fd);
    o.meaning.shape.window = (struct kv_window){.window = 20, .kv_block = 16, .slots = 2, .context = 200, .max_rows = 4, .ticks = 2};
    o.meaning.shape.window_layers[0] = 2;
    struct kv_pool p = open_pool(&o);
    uint64_t id = kv_pool_id(&p);
    kv_pool_close(&p);
    assert_int_equal(kv_pool_kept_blocks(fd, &o.meaning), N_BLOCKS);
    p = open_pool(&o);
    assert_true(p.kept && kv_pool_id(&p) == id);
    kv_pool_close(&p);
    o.meaning.shape.window.ticks = 3; /* the number of its WINDOW blocks follows from it */
    assert_int_equal(kv_pool_kept_blocks(fd, &o.meaning), 0);
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_with_a_window_have_blocks_of_their_own),
        cmocka_unit_test(a_pool_of_another_window_is_not_taken_up),
        cmocka_unit_test(a_new_pool_is_zeroed_unmarked_and_named),
        cmocka_unit_test(what_fits_is_taken_up_whole),
        cmocka_unit_test(a_pool_of_anything_else_is_zeroed_and_named_anew),
        cmocka_unit_test(a_damaged_header_is_not_believed),
        cmocka_unit_test(a_descriptor_that_is_no_memory_is_refused),
        cmocka_unit_test(a_kill_leaves_a_watermark_that_was_true),
        cmocka_unit_test(costs_are_kept_for_the_same_kind_of_ticks_only),
        cmocka_unit_test(a_kept_pool_costs_no_time),
        cmocka_unit_test(a_lazy_pool_takes_pages_when_they_are_written),
    };
    log_set_levels("error", NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
