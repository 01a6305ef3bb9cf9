// bce.c -- binary cross-entropy on the accumulator of one logit: loss and error of the logit. SPEC.md section 3.3.
// x (1) s32   scale (1) f32   dy (1) s8   unit f32, the real value of one step of dy
// l = x * scale   p = 1 / (1 + exp(-l))   g = p - t, t = 0 for label 0, else 1   unit = |g| / 127
// Float, in the order written; exp sees no positive number. dy, unit, ry may alias nothing. |l| <= 2^31 * 2^64 is finite.

#include "loss.h"

void mg_bce_s32(const struct mg_ctx *ctx, const struct mg_step_bce_s32 *k)
{
    const int32_t *x = mg_at(ctx, k->x);
    const float *scale = mg_at(ctx, k->scale);
    struct mg_loss to = MG_LOSS(ctx, k);
    const float l = (float)x[0] * scale[0];
    const float t = to.args->label == 0 ? 0.0f : 1.0f;
    const float a = mg_exp(-mg_abs(l));
    const float p = l >= 0.0f ? 1.0f / (1.0f + a) : a / (1.0f + a);
    const float g = p - t;
    const float loss = (mg_larger(l, 0.0f) - l * t) + mg_log(1.0f + a);
    mg_loss_tell(&to, loss, mg_abs(g), l > 0.0f ? 1 : 0);
    mg_loss_put(&to, 0, g);
}
