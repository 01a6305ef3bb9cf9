// mul.c -- product of two tensors: forward, gradient of a, gradient of b.
// Letters   P rows, C columns.   Row-major.   a, y, dy (P,C) s8   b (P or 1, C or 1) s8, spread   dx as a or as b, s8
// y  = clamp(zy + M * ((a - za) * (b - zb)))
// da = round(Mx * dy * (b - zb))                                                          SPEC.md 3.5
// db = round(Mx * sum dy * (a - za)), over what reads this b
// Rounding: fixed.h, error.h. Saved for backward: the other operand. By elements (SPEC.md 3), y may lie over a or a b
// that is not spread, and dx over skip or x, and over dy and the other operand where that is not a sum or spread.
// |product| < 2^16. The sum for db wraps at 32 bits: below 2^31 for 65,000 readers of one b.

#include "broadcast.h"

MG_INLINE void mul_row(const struct mg_step_mul_fwd_s8 *k, const int8_t *a, const int8_t *b, int8_t *y, int32_t rounding)
{
    for (uint32_t c = 0; c < k->c; c++, b += k->bc) {
        const int32_t product = (a[c] - k->za) * (*b - k->zb);
        y[c] = mg_output8(mg_requantize(product, k->mult, k->shift, rounding), k->zy, k->lo, k->hi);
    }
}

void mg_mul_fwd_s8(const struct mg_ctx *ctx, const struct mg_step_mul_fwd_s8 *k)
{
    const int8_t *a = mg_at(ctx, k->a);
    const int8_t *b = mg_at(ctx, k->b);
    int8_t *y = mg_at(ctx, k->y);
    const struct mg_spread spread = MG_SPREAD(k);
    for (uint32_t p = 0; p < k->p; p++, a += k->c, b += spread.row, y += k->c) {
        if (k->rounding == MG_ROUND_ONCE)
            mul_row(k, a, b, y, MG_ROUND_ONCE);
        else
            mul_row(k, a, b, y, MG_ROUND_TWICE);
    }
}

void mg_mul_bwd_a_s8(const struct mg_ctx *ctx, const struct mg_step_mul_bwd_a_s8 *k)
{
    const int8_t *dy = mg_at(ctx, k->dy);
    const int8_t *b = mg_at(ctx, k->b);
    struct mg_error error = MG_ERROR_BEGIN(ctx, k, MG_BITS(ctx, k));
    const struct mg_spread spread = MG_SPREAD(k);
    size_t at = 0;
    for (uint32_t p = 0; p < k->p; p++, b += spread.row)
        for (uint32_t c = 0; c < k->c; c++, at++)
            mg_error_put(&error, at, dy[at] * (b[c * spread.column] - k->zb));
    mg_error_end(&error);
}

static uint32_t sum_block(const int8_t *dy, const int8_t *a, int32_t za, const struct mg_readers *from, uint32_t pitch)
{
    uint32_t sum = 0;
    for (uint32_t p = 0; p < from->rows; p++)
        for (uint32_t c = 0; c < from->columns; c++)
            sum += (uint32_t)(dy[p * pitch + c] * (a[p * pitch + c] - za));
    return sum;
}

void mg_mul_bwd_b_s8(const struct mg_ctx *ctx, const struct mg_step_mul_bwd_b_s8 *k)
{
    const int8_t *dy = mg_at(ctx, k->dy);
    const int8_t *a = mg_at(ctx, k->a);
    struct mg_error error = MG_ERROR_BEGIN(ctx, k, MG_BITS(ctx, k));
    const struct mg_readers from = MG_READERS(k);
    size_t at = 0;
    for (uint32_t p = 0; p < k->p; p += from.rows) {
        for (uint32_t c = 0; c < k->c; c += from.columns) {
            const size_t first = (size_t)p * k->c + c;
            mg_error_put(&error, at++, mg_wrap32(sum_block(dy + first, a + first, k->za, &from, k->c)));
        }
    }
    mg_error_end(&error);
}
