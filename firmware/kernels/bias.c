// bias.c -- update of a layer's bias. The forward and input-gradient steps of the layer itself read it.
// Letters   n output positions, O outputs.   dy (n,O) s8   b (O) s32, bf fraction bits, the half already added
// db = sum_n dy[n,o], then b -= factor[o] * db * 2^bf                    SPEC.md 3.6
// In a micro-batch (af > 0) the low bf bits sum up the steps in units of 2^-af, and the commit moves them above.
// Rounding: fixed.h. db wraps at 32 bits: |db| < 2^31 for n < 16.7 million.

#include "update.h"

static int32_t low_bits(int32_t b, int32_t bf)
{
    return b & ((1 << bf) - 1);
}

void mg_bias_upd_s32(const struct mg_ctx *ctx, const struct mg_step_bias_upd_s32 *k)
{
    const int8_t *dy = mg_at(ctx, k->dy);
    const mg_args *args = mg_at(ctx, k->args);
    const float *unit = mg_at(ctx, k->unit);
    const float *rate = mg_at(ctx, k->rate);
    const int32_t r = mg_exponent_r(ctx, k->ry);
    int32_t *b = mg_at(ctx, k->b);
    const int32_t bits = k->af != 0 ? k->af : k->bf;
    for (int32_t o = 0; o < k->o; o++) {
        int32_t db = 0;
        for (uint32_t n = 0; n < k->n; n++)
            db = mg_add32(db, dy[n * k->o + (uint32_t)o]);
        const struct mg_split factor = mg_update_factor(args, unit, rate[o], r);
        const int64_t next = (int64_t)b[o] - mg_scale(db, factor.mult, factor.n - bits);
        const int32_t low = low_bits(b[o], k->bf);
        if (k->af == 0)
            b[o] = mg_clamp64(next, -INT32_MAX, INT32_MAX);
        else
            b[o] = mg_clamp64(next, b[o] - low, b[o] - low + (1 << k->bf) - 1);
    }
}

// As mg_commit_s16, with 2^(bf-1) for 128: v + d stays what int32 holds above bf bits. |d| <= 2^15.
void mg_commit_s32(const struct mg_ctx *ctx, const struct mg_step_commit_s32 *k)
{
    int32_t *b = mg_at(ctx, k->b);
    const int32_t half = 1 << (k->bf - 1);
    for (int32_t o = 0; o < k->o; o++) {
        const int32_t a = low_bits(b[o], k->bf) - half;
        const int32_t d = (a + (1 << (k->af - 1))) >> k->af;
        const int32_t v = mg_clamp((b[o] >> k->bf) + d, INT32_MIN >> k->bf, INT32_MAX >> k->bf);
        b[o] = v * (1 << k->bf) + half + a - d * (1 << k->af);
    }
}
