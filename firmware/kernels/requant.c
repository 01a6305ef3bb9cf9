// requant.c -- int32 accumulators of a head to the int8 output that the model file promises.
// Letters   N batch, O outputs.   Row-major.   x (N,O) s32   y (N,O) s8
// y = clamp(zy + M[o] * x[n,o])
// Rounding: fixed.h. By elements (SPEC.md 3), y may lie over x.
// Any x: requant saturates by construction, the zero point is added after the clamp.

#include "fixed.h"

MG_INLINE void requant_row(const struct mg_step_requant_fwd_s8 *k, const mg_requant *rq, const int32_t *x, int8_t *y, int32_t rounding)
{
    for (int32_t o = 0; o < k->o; o++)
        y[o] = mg_output8(mg_requantize(x[o], rq[o].mult, rq[o].shift, rounding), k->zy, k->lo, k->hi);
}

void mg_requant_fwd_s8(const struct mg_ctx *ctx, const struct mg_step_requant_fwd_s8 *k)
{
    const int32_t *x = mg_at(ctx, k->x);
    const mg_requant *rq = mg_at(ctx, k->rq);
    int8_t *y = mg_at(ctx, k->y);
    for (int32_t n = 0; n < k->n; n++, x += k->o, y += k->o) {
        if (k->rounding == MG_ROUND_ONCE)
            requant_row(k, rq, x, y, MG_ROUND_ONCE);
        else
            requant_row(k, rq, x, y, MG_ROUND_TWICE);
    }
}
