// prelu.c -- a line for x >= zx and another, one per channel, for x < zx: forward, input gradient. alpha is not trained.
// Letters   P positions, C channels.   Row-major.   x, y, dy, dx (P,C) s8   alpha (C) s8   slope (C) s16
// y  = sat8(zy + (x >= zx ? Mp * (x - zx) : Mn * ((x - zx) * (alpha[c] - za))))
// dx = round(Mx * dy * (x > zx ? one : slope[c]))             SPEC.md 3.5
// Rounding: fixed.h, error.h. Saved for backward: x. By elements (SPEC.md 3), y may lie over x, and dx over
// dy, skip or x.
// |(x - zx) * (alpha - za)| < 2^16, |dy * slope| <= 2^22.

#include "error.h"

MG_INLINE void prelu_row(const struct mg_step_prelu_fwd_s8 *k, const int8_t *x, const int8_t *alpha, int8_t *y, int32_t rounding)
{
    for (uint32_t c = 0; c < k->c; c++) {
        const int32_t v = x[c] - k->zx;
        const int32_t u = v >= 0 ? mg_requantize(v, k->pm, k->psh, rounding)
                                 : mg_requantize(v * (alpha[c] - k->za), k->nm, k->nsh, rounding);
        y[c] = mg_output8(u, k->zy, -128, 127);
    }
}

void mg_prelu_fwd_s8(const struct mg_ctx *ctx, const struct mg_step_prelu_fwd_s8 *k)
{
    const int8_t *x = mg_at(ctx, k->x);
    const int8_t *alpha = mg_at(ctx, k->alpha);
    int8_t *y = mg_at(ctx, k->y);
    for (uint32_t p = 0; p < k->p; p++, x += k->c, y += k->c) {
        if (k->rounding == MG_ROUND_ONCE)
            prelu_row(k, x, alpha, y, MG_ROUND_ONCE);
        else
            prelu_row(k, x, alpha, y, MG_ROUND_TWICE);
    }
}

void mg_prelu_bwd_x_s8(const struct mg_ctx *ctx, const struct mg_step_prelu_bwd_x_s8 *k)
{
    const int8_t *dy = mg_at(ctx, k->dy);
    const int8_t *x = mg_at(ctx, k->x);
    const int16_t *slope = mg_at(ctx, k->slope);
    struct mg_error error = MG_ERROR_BEGIN(ctx, k, NULL);
    size_t at = 0;
    for (uint32_t p = 0; p < k->p; p++)
        for (uint32_t c = 0; c < k->c; c++, at++)
            mg_error_put(&error, at, dy[at] * (x[at] > k->zx ? k->one : slope[c]));
    mg_error_end(&error);
}
