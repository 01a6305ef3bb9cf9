// add.c -- elementwise addition of two branches: forward, input gradient of one branch.
// Letters   n elements.   a, b, y, dy, dx (n) s8
// y  = clamp(zy + My * (Ma * (a - za) * 2^20 + Mb * (b - zb) * 2^20))         TensorFlow Lite, three roundings
// dx = round(Mx * dy * 2^20)                                                  SPEC.md 3.5
// Rounding: fixed.h, error.h. Nothing is saved for backward. y may be the bytes of a or b; dx those of dy, skip or x.
// |(a - za) * 2^20| < 2^28, Ma, Mb < 1: the sum fits.

#include "error.h"

void mg_add_fwd_s8(const struct mg_ctx *ctx, const struct mg_step_add_fwd_s8 *k)
{
    const int8_t *a = mg_at(ctx, k->a);
    const int8_t *b = mg_at(ctx, k->b);
    int8_t *y = mg_at(ctx, k->y);
    for (uint32_t n = 0; n < k->n; n++) {
        const int32_t u = mg_requantize((a[n] - k->za) * (1 << 20), k->am, k->ash);
        const int32_t v = mg_requantize((b[n] - k->zb) * (1 << 20), k->bm, k->bsh);
        y[n] = mg_output8(mg_requantize(u + v, k->ym, k->ysh), k->zy, k->lo, k->hi);
    }
}

void mg_add_bwd_x_s8(const struct mg_ctx *ctx, const struct mg_step_add_bwd_x_s8 *k)
{
    const int8_t *dy = mg_at(ctx, k->dy);
    struct mg_error error = MG_ERROR_BEGIN(ctx, k);
    for (uint32_t n = 0; n < k->n; n++)
        mg_error_put(&error, n, dy[n] * (1 << 20));
    mg_error_end(&error);
}
