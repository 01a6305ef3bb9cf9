// add.c -- sum or difference of two tensors: forward, input gradient of either operand.
// Letters   P rows, C columns.   Row-major.   a, y, dy (P,C) s8   b (P or 1, C or 1) s8, spread   dx as a or as b, s8
// y  = clamp(zy + My * (asign * Ma * (a - za) * 2^20 + bsign * Mb * (b - zb) * 2^20))     TensorFlow Lite, three roundings
// dx = round(Mx * sign * dy * 2^12), or for a spread b round(Mx * sign * 2^up * sum dy)   SPEC.md 3.5
// Rounding: fixed.h, error.h. Nothing is saved for backward. By elements (SPEC.md 3), y may lie over a or a b that is
// not spread, and dx over skip or x, and over dy where it is not a sum.
// |(a - za) * 2^20| < 2^28, Ma, Mb < 1: the sum fits. The sum of dy wraps at 32 bits: below 2^31 for P*C <= 2^24 / 2^up.

#include "broadcast.h"

MG_INLINE void add_row(const struct mg_step_add_fwd_s8 *k, const int8_t *a, const int8_t *b, int8_t *y, int32_t rounding)
{
    for (uint32_t c = 0; c < k->c; c++, b += k->bc) {
        const int32_t u = mg_requantize((a[c] - k->za) * (1 << 20), k->am, k->ash, rounding);
        const int32_t v = mg_requantize((*b - k->zb) * (1 << 20), k->bm, k->bsh, rounding);
        const int32_t sum = mg_requantize(k->asign * u + k->bsign * v, k->ym, k->ysh, rounding);
        y[c] = mg_output8(sum, k->zy, k->lo, k->hi);
    }
}

void mg_add_fwd_s8(const struct mg_ctx *ctx, const struct mg_step_add_fwd_s8 *k)
{
    const int8_t *a = mg_at(ctx, k->a);
    const int8_t *b = mg_at(ctx, k->b);
    int8_t *y = mg_at(ctx, k->y);
    const struct mg_spread spread = MG_SPREAD(k);
    for (uint32_t p = 0; p < k->p; p++, a += k->c, b += spread.row, y += k->c) {
        if (k->rounding == MG_ROUND_ONCE)
            add_row(k, a, b, y, MG_ROUND_ONCE);
        else
            add_row(k, a, b, y, MG_ROUND_TWICE);
    }
}

void mg_add_bwd_x_s8(const struct mg_ctx *ctx, const struct mg_step_add_bwd_x_s8 *k)
{
    const int8_t *dy = mg_at(ctx, k->dy);
    struct mg_error error = MG_ERROR_BEGIN(ctx, k, MG_BITS(ctx, k));
    for (uint32_t n = 0; n < k->n; n++)
        mg_error_put(&error, n, k->sign * dy[n] * (1 << 12));
    mg_error_end(&error);
}

static int32_t sum_block(const int8_t *dy, const struct mg_readers *from, uint32_t pitch)
{
    int32_t sum = 0;
    for (uint32_t p = 0; p < from->rows; p++)
        for (uint32_t c = 0; c < from->columns; c++)
            sum = mg_add32(sum, dy[p * pitch + c]);
    return sum;
}

void mg_sum_bwd_x_s8(const struct mg_ctx *ctx, const struct mg_step_sum_bwd_x_s8 *k)
{
    const int8_t *dy = mg_at(ctx, k->dy);
    struct mg_error error = MG_ERROR_BEGIN(ctx, k, MG_BITS(ctx, k));
    const struct mg_readers from = MG_READERS(k);
    const uint32_t factor = (uint32_t)(k->sign * (1 << k->up));
    size_t at = 0;
    for (uint32_t p = 0; p < k->p; p += from.rows)
        for (uint32_t c = 0; c < k->c; c += from.columns)
            mg_error_put(&error, at++, mg_wrap32((uint32_t)sum_block(dy + (size_t)p * k->c + c, &from, k->c) * factor));
    mg_error_end(&error);
}
