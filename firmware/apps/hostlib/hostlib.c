// hostlib.c -- what tests reach through ctypes: one step in isolation, and the primitives of fixed.h.

#include "../../kernels/fixed.h"

int mg_host_run_step(const uint8_t *record, size_t bytes, uint8_t *region[MG_REGIONS], const size_t region_bytes[MG_REGIONS]);
int32_t mg_host_srdhm(int32_t a, int32_t b);
int32_t mg_host_rdivpot(int32_t x, int32_t n);
int32_t mg_host_requant(int32_t acc, int32_t mult, int32_t shift, int32_t rounding);
int32_t mg_host_scale(int32_t v, int32_t mult, int32_t n);
void mg_host_split(float f, int32_t *mult, int32_t *n);
float mg_host_exp(float x);
float mg_host_log(float x);
uint32_t mg_host_draw(uint32_t seed, uint32_t tick, uint32_t stream, uint32_t k);

// Verifies a record (aligned to 4) against regions of these sizes (aligned to 16, NULL where empty), then runs its kernel.
// Returns an enum mg_err.
int mg_host_run_step(const uint8_t *record, size_t bytes, uint8_t *region[MG_REGIONS], const size_t region_bytes[MG_REGIONS])
{
    _Alignas(16) uint8_t empty[16] = {0};
    struct mg_ctx ctx = {0};
    if ((uintptr_t)record % 4 != 0)
        return MG_ERR_ALIGN;
    for (int r = 0; r < MG_REGIONS; r++) {
        if ((uintptr_t)region[r] % 16 != 0)
            return MG_ERR_ALIGN;
        if (region_bytes[r] > MG_REGION_LIMIT)
            return MG_ERR_SIZE;
        ctx.base[r] = region_bytes[r] != 0 ? region[r] : empty;
        ctx.bytes[r] = (uint32_t)region_bytes[r];
    }
    const struct mg_step *step = (const struct mg_step *)(const void *)record;
    const int code = mg_check_step(&ctx, step, bytes, &ctx.fault);
    if (code == MG_OK)
        mg_run_step(&ctx, step);
    return code;
}

int32_t mg_host_srdhm(int32_t a, int32_t b)
{
    return mg_srdhm(a, b);
}

int32_t mg_host_rdivpot(int32_t x, int32_t n)
{
    return mg_rdivpot(x, n);
}

int32_t mg_host_requant(int32_t acc, int32_t mult, int32_t shift, int32_t rounding)
{
    return mg_requantize(acc, mult, shift, rounding);
}

int32_t mg_host_scale(int32_t v, int32_t mult, int32_t n)
{
    return mg_scale(v, mult, n);
}

void mg_host_split(float f, int32_t *mult, int32_t *n)
{
    const struct mg_split split = mg_split(f);
    *mult = split.mult;
    *n = split.n;
}

float mg_host_exp(float x)
{
    return mg_exp(x);
}

float mg_host_log(float x)
{
    return mg_log(x);
}

uint32_t mg_host_draw(uint32_t seed, uint32_t tick, uint32_t stream, uint32_t k)
{
    const mg_rng rng = {seed, tick};
    return mg_draw(mg_draw_key(&rng, stream), k);
}
