/* How many instructions a plan takes, counted by callgrind: at most 200,000 for 256 streams, growing no faster than n log n.
 *
 * The program makes states, writes them down (they are bytes without pointers) and runs itself under callgrind to plan from
 * each of them; the counts do not depend on the machine's load. Without valgrind it says so and is skipped.
 * `test_sched_instructions plans FILE SLOTS` is what runs inside. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "coordinator/scheduler.h"
#include "tests/sim/sim.h"

enum { N_PLANS = 12 };

/* What the slots hold: streams, and how many of them are readers instead. */
struct scene {
    const char *name;
    double readers;      /* part of the slots */
    double share;
    uint32_t length;     /* of the prompts */
};

static const struct scene SCENES[] = {
    {"streams", 0, 0.5, 100},
    {"few_readers", 0.03, 0.5, 6000},
    {"half_readers", 0.5, 0.5, 300},
    {"half_readers_without_a_share", 0.5, 0, 24},
    {"readers", 1, 0.5, 20},
};

/* --- inside ----------------------------------------------------------------------------------------------------------------- */

/* What callgrind counts. */
__attribute__((noinline)) static int counted_plan(const struct sched *s, struct sched_plan *p)
{
    int planned = sched_plan(s, p);
    __asm__ volatile("" ::: "memory"); /* no tail call */
    return planned;
}

static int run_plans(const char *file, uint32_t n_slots)
{
    struct sched *s;
    struct sched_plan *p;
    const struct sched_options o = {.n_stages = 1, .n_slots = n_slots, .max_stall_us = 1, .max_tick_us = 1};
    FILE *f = fopen(file, "rb");
    uint64_t bytes;
    if (!f || fread(&bytes, sizeof bytes, 1, f) != 1 || sched_create(&o, &s) != STATUS_OK || sched_plan_create(s, &p) != STATUS_OK)
        return 1;
    char *state = malloc(bytes);
    for (int i = 0; i < N_PLANS; i++)
        if (!state || fread(state, bytes, 1, f) != 1 || !counted_plan((struct sched *)state, p))
            return 1;
    fclose(f);
    free(state);
    sched_plan_destroy(p);
    sched_destroy(s);
    return 0;
}

/* --- states ----------------------------------------------------------------------------------------------------------------- */

static void add_sequences(struct sched *s, uint32_t from, uint32_t end, uint32_t length)
{
    for (uint32_t i = from; i < end; i++) {
        const struct sched_sequence q = {.n_prompt = length + i % 7, .n_answer = 1000, .order = i, .limit = UINT32_MAX};
        assert_int_equal(sched_add(s, (struct slot_ref){i, i + 1}, &q), STATUS_OK);
    }
}

/* One tick more, after as many results as it takes. */
static void next_tick(struct sched *s, struct sched_plan *p, uint64_t *oldest)
{
    while (!sched_plan(s, p))
        assert_int_equal(sched_retire(s, (*oldest)++, NULL), STATUS_OK);
    sched_commit(s, p);
}

/* Streams come from short prompts; then the readers join. */
static void write_states(const struct scene *sc, uint32_t n, uint32_t n_stages, int fd)
{
    const struct sched_options o = {.n_stages = n_stages, .n_slots = n, .max_rows = 512, .decode_share = sc->share,
                                    .max_stall_us = 250e3, .max_tick_us = 250e3, .delta_us = 50, .lambda_us = 50};
    const struct msg_loaded l = sim_stage(2000, 40, 20, 10);
    uint32_t n_streams = n - (uint32_t)(sc->readers * n);
    uint64_t oldest = 1;
    struct sched *s;
    struct sched_plan *p;
    assert_int_equal(sched_create(&o, &s), STATUS_OK);
    assert_int_equal(sched_plan_create(s, &p), STATUS_OK);
    for (uint32_t i = 0; i < n_stages; i++)
        sched_set_stage(s, i, &l);
    add_sequences(s, 0, n_streams, 1);
    while (sched_stats(s).n_readers > 0)
        next_tick(s, p, &oldest);
    add_sequences(s, n_streams, n, sc->length);
    uint64_t bytes = sched_bytes(s);
    assert_int_equal(write(fd, &bytes, sizeof bytes), sizeof bytes);
    for (int i = 0; i < N_PLANS; i++) {
        next_tick(s, p, &oldest);
        while (!sched_plan(s, p))
            assert_int_equal(sched_retire(s, oldest++, NULL), STATUS_OK);
        assert_int_equal(write(fd, s, bytes), bytes);
    }
    sched_plan_destroy(p);
    sched_destroy(s);
}

/* --- outside ---------------------------------------------------------------------------------------------------------------- */

static char self[512];

static double counted(const char *file)
{
    char line[256];
    double count = 0;
    FILE *f = fopen(file, "r");
    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, "totals:", 7))
            count = atof(line + 7);
    if (f)
        fclose(f);
    return count;
}

/* Of one plan, the mean over the scene's. */
static double instructions_of(const struct scene *sc, uint32_t n, uint32_t n_stages)
{
    char states[] = "/tmp/sluice-states-XXXXXX", file[] = "/tmp/sluice-counts-XXXXXX", command[2048];
    int states_fd = mkstemp(states), fd = mkstemp(file);
    assert_true(states_fd >= 0 && fd >= 0);
    write_states(sc, n, n_stages, states_fd);
    close(states_fd);
    close(fd);
    snprintf(command, sizeof command,
             "valgrind -q --tool=callgrind --callgrind-out-file=%s --toggle-collect=counted_plan %s plans %s %u >&2", file, self,
             states, n);
    int rc = system(command);
    double count = counted(file) / N_PLANS;
    unlink(file);
    unlink(states);
    assert_int_equal(rc, 0);
    assert_true(count > 1000); /* something was counted */
    return count;
}

static void a_plan_for_256_sequences_takes_at_most_200000_instructions(void **state)
{
    (void)state;
    static const uint32_t stages[] = {2, 64};
    double most = 0;
    for (size_t i = 0; i < sizeof SCENES / sizeof SCENES[0]; i++)
        for (int k = 0; k < 2; k++) {
            double count = instructions_of(&SCENES[i], 256, stages[k]);
            print_message("%u stages, 256 slots, %s: %.0f\n", stages[k], SCENES[i].name, count);
            most = fmax(most, count);
        }
    assert_true(most <= 200e3);
}

static void instructions_grow_no_faster_than_n_log_n(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof SCENES / sizeof SCENES[0]; i++) {
        double small = instructions_of(&SCENES[i], 512, 8), large = instructions_of(&SCENES[i], 4096, 8);
        print_message("8 stages, %s: %.0f at 512, %.0f at 4096\n", SCENES[i].name, small, large);
        assert_true(large <= small * 8 * log(4096) / log(512));
    }
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__OPTIMIZE__)
static const int COUNTS_MEAN_NOTHING = 1; /* this build's instructions are not those of the product */
#else
static const int COUNTS_MEAN_NOTHING = 0;
#endif

int main(int argc, char **argv)
{
    if (argc == 4 && !strcmp(argv[1], "plans"))
        return run_plans(argv[2], (uint32_t)atoi(argv[3]));
    if (COUNTS_MEAN_NOTHING) {
        puts("skipped: instructions of a debug or sanitizer build say nothing");
        return 77;
    }
    if (system("valgrind --version >/dev/null 2>&1") != 0) {
        puts("skipped: valgrind is not installed (deploy/install_deps.sh test installs it)");
        return 77;
    }
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0)
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plan_for_256_sequences_takes_at_most_200000_instructions),
        cmocka_unit_test(instructions_grow_no_faster_than_n_log_n),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
