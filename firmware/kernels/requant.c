// requant.c -- int32 accumulators of a head to the int8 output that the model file promises.
// Letters   N batch, O outputs.   Row-major.   x (N,O) s32   y (N,O) s8
// y = clamp(zy + M[o] * x[n,o])
// Rounding: fixed.h. y may alias nothing. Any x: requant saturates by construction, the zero point is added after the clamp.

#include "fixed.h"

void mg_requant_fwd_s8(const struct mg_ctx *ctx, const struct mg_step_requant_fwd_s8 *k)
{
    const int32_t *x = mg_at(ctx, k->x);
    const struct mg_output to = MG_OUTPUT(ctx, k);
    int8_t *y = mg_at(ctx, k->y);
    for (int32_t n = 0; n < k->n; n++)
        for (int32_t o = 0; o < k->o; o++)
            *y++ = mg_output_of(&to, o, *x++);
}
