#include "kernels/ops.h"

#include <pthread.h>
#include <string.h>

#include "kernels/block.h"
#include "kernels/cpu/cpu.h"
#include "kernels/probe.h"
#include "kernels/quant.h"
#include "kernels/ref/ref.h"

/* In ascending order: "auto" takes the last that runs here. */
static const struct {
    const char *name;
    const struct ops *ops;
} isas[PROBE_N_ISAS] = {
    [PROBE_PORTABLE] = {"portable", &ops_cpu_portable},
#if defined(__x86_64__)
    [PROBE_AVX2] = {"avx2", &ops_cpu_avx2},       [PROBE_AVXVNNI] = {"avxvnni", &ops_cpu_avxvnni},
    [PROBE_AVX512] = {"avx512", &ops_cpu_avx512}, [PROBE_AMX] = {"amx", &ops_cpu_amx},
#else
    [PROBE_AVX2] = {"avx2", NULL},     [PROBE_AVXVNNI] = {"avxvnni", NULL},
    [PROBE_AVX512] = {"avx512", NULL}, [PROBE_AMX] = {"amx", NULL},
#endif
};

static const char *missing[PROBE_N_ISAS];
static int known[PROBE_N_ISAS]; /* both under the lock: a set is checked when it is first asked for */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static const char *isa_missing(enum probe_isa isa)
{
    pthread_mutex_lock(&lock);
    if (!known[isa]) {
        missing[isa] = probe_cpu(isa);
        if (!missing[isa])
            missing[isa] = probe_self_check(isas[isa].ops);
        known[isa] = 1;
    }
    const char *why = missing[isa];
    pthread_mutex_unlock(&lock);
    return why;
}

static int isa_find(const char *name)
{
    for (int i = 0; i < PROBE_N_ISAS; i++)
        if (strcmp(isas[i].name, name) == 0)
            return i;
    return -1;
}

const char *ops_isa_missing(const char *isa)
{
    int i = isa_find(isa);
    return i < 0 ? "no such instruction set is known" : isa_missing((enum probe_isa)i);
}

static enum status open_cpu(const char *isa, const struct ops **out, struct error *err)
{
    int i;
    if (strcmp(isa, "auto") == 0) {
        for (i = PROBE_N_ISAS - 1; i > PROBE_PORTABLE && isa_missing((enum probe_isa)i); i--)
            ;
    } else {
        i = isa_find(isa);
        if (i < 0)
            return error_set(err, STATUS_CONFIG, "no instruction set \"%s\": portable, avx2, avxvnni, avx512, amx or auto",
                             isa);
        const char *why = isa_missing((enum probe_isa)i);
        if (why)
            return error_set(err, STATUS_CONFIG, "the instruction set %s cannot be used: %s", isa, why);
    }
    *out = isas[i].ops;
    return STATUS_OK;
}

enum status ops_open(const char *backend, const char *isa, const struct ops **out, struct error *err)
{
    if (strcmp(backend, "ref") == 0) {
        *out = &ops_ref;
        return STATUS_OK;
    }
    if (strcmp(backend, "cpu") == 0 || strcmp(backend, "auto") == 0)
        return open_cpu(isa, out, err);
    if (strcmp(backend, "cuda") == 0)
        return error_set(err, STATUS_CONFIG, "this build has no cuda backend");
    return error_set(err, STATUS_CONFIG, "no backend \"%s\": cpu, ref or auto", backend);
}

const char *ops_numerics_profile(void)
{
    return "sluice-1 act=int8/32 kv=f16 attn=f32/64 norm=f32/16";
}

enum status weight_prepare(const struct ops *ops, enum tensor_type type, uint32_t n, uint32_t k, const void *file_rows,
                           struct weight *w, struct error *err)
{
    const char *name = block_type_name(type);
    if (!quant_supported(type) || ops->weight_bytes(type, n, k) == SIZE_MAX)
        return error_set(err, STATUS_UNSUPPORTED, "weights of type %s (%d) are not supported", name, (int)type);
    uint32_t elements, bytes;
    block_size(type, &elements, &bytes);
    if (n == 0 || k == 0 || k % elements)
        return error_set(err, STATUS_BAD_MODEL, "a %s matrix of %u rows of %u: rows must be a multiple of %u long", name, n,
                         k, elements);
    *w = (struct weight){.type = type, .n = n, .k = k, .file_rows = file_rows};
    return STATUS_OK;
}

int weight_is_quantized(const struct weight *w)
{
    return block_traits(w->type) != NULL;
}
