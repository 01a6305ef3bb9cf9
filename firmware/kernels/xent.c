// xent.c -- softmax and cross-entropy on the head's accumulators: loss and error of the logits. SPEC.md section 3.3.
// Letters   C classes.   x (C) s32   scale (C) f32   dy (C) s8   unit f32, the real value of one step of dy
// l = x * scale   p = exp(l - max l) / sum   g = p - (c = label)   unit = max |g| / 127   dy = floor(g / unit + 1/2)
// Float, in the order written. Every class is computed again in each pass: no array of C floats. dy, unit, ry may alias nothing.
// |l| <= 2^31 * 2^64 is finite and 1 <= sum < 2^16, whatever x holds.

#include "loss.h"

static float logit(const int32_t *x, const float *scale, int32_t c)
{
    return (float)x[c] * scale[c];
}

// Index of the first largest logit.
static int32_t first_max(const int32_t *x, const float *scale, int32_t n)
{
    int32_t best = 0;
    for (int32_t c = 1; c < n; c++)
        if (logit(x, scale, c) > logit(x, scale, best))
            best = c;
    return best;
}

static float gradient(float l, float max, float sum, bool is_label)
{
    return mg_exp(l - max) / sum - (is_label ? 1.0f : 0.0f);
}

void mg_xent_s32(const struct mg_ctx *ctx, const struct mg_step_xent_s32 *k)
{
    const int32_t *x = mg_at(ctx, k->x);
    const float *scale = mg_at(ctx, k->scale);
    struct mg_loss to = MG_LOSS(ctx, k);
    const int32_t label = to.args->label;
    const int32_t best = first_max(x, scale, k->c);
    const float max = logit(x, scale, best);
    float sum = 0.0f;
    for (int32_t c = 0; c < k->c; c++)
        sum += mg_exp(logit(x, scale, c) - max);
    float peak = 0.0f;
    for (int32_t c = 0; c < k->c; c++)
        peak = mg_larger(peak, mg_abs(gradient(logit(x, scale, c), max, sum, c == label)));
    const float loss = mg_log(sum) - (label < k->c ? logit(x, scale, label) - max : 0.0f);
    mg_loss_tell(&to, loss, peak, best);
    for (uint32_t c = 0; c < k->c; c++)
        mg_loss_put(&to, c, gradient(logit(x, scale, (int32_t)c), max, sum, (int32_t)c == label));
}
