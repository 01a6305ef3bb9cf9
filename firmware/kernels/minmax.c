// minmax.c -- the smaller or the larger of two elements, of equal scale and zero point: forward, input gradient of either operand.
// Letters   P rows, C columns.   Row-major.   a, y, dy, dx (P,C) s8   b (P or 1, C or 1) s8, spread
// y  = max ? max(a, b) : min(a, b), of the codes
// dx = round(Mx * dy * 2^12) where the operand was chosen, else 0; a where both are equal   SPEC.md 3.5
// Rounding: error.h. Saved for backward: a, b. By elements (SPEC.md 3), y may lie over a or a b that is not
// spread, and dx over dy, a, such a b, skip or x.

#include "broadcast.h"

static inline bool takes_a(int32_t a, int32_t b, bool max)
{
    return max ? a >= b : a <= b;
}

void mg_minmax_fwd_s8(const struct mg_ctx *ctx, const struct mg_step_minmax_fwd_s8 *k)
{
    const int8_t *a = mg_at(ctx, k->a);
    const int8_t *b = mg_at(ctx, k->b);
    int8_t *y = mg_at(ctx, k->y);
    const struct mg_spread spread = MG_SPREAD(k);
    for (uint32_t p = 0; p < k->p; p++, b += spread.row) {
        for (uint32_t c = 0; c < k->c; c++, a++) {
            const int8_t v = b[c * spread.column];
            *y++ = takes_a(*a, v, k->max) ? *a : v;
        }
    }
}

void mg_minmax_bwd_x_s8(const struct mg_ctx *ctx, const struct mg_step_minmax_bwd_x_s8 *k)
{
    const int8_t *dy = mg_at(ctx, k->dy);
    const int8_t *a = mg_at(ctx, k->a);
    const int8_t *b = mg_at(ctx, k->b);
    struct mg_error error = MG_ERROR_BEGIN(ctx, k, MG_BITS(ctx, k));
    const struct mg_spread spread = MG_SPREAD(k);
    size_t at = 0;
    for (uint32_t p = 0; p < k->p; p++, b += spread.row) {
        for (uint32_t c = 0; c < k->c; c++, at++) {
            const bool chosen = takes_a(a[at], b[c * spread.column], k->max) != (bool)k->second;
            mg_error_put(&error, at, chosen ? dy[at] * (1 << 12) : 0);
        }
    }
    mg_error_end(&error);
}
