// mse.c -- mean squared error, on accumulators or on the int8 output: loss and error. SPEC.md section 3.3.
// Letters   C (s32) or n (s8) elements.   x s32 with scale (C) f32, or s8 with sx, zx   target s8 with st, zt   dy s8   unit f32
// v = x * scale or (x - zx) * sx   d = v - (target - zt) * st   g = 2 d / C   loss = sum d^2 / C   unit = max |g| / 127
// Float, in the order written. dy, unit, ry, result may alias nothing. |d| < 2^96 is finite, whatever x and target hold; the sum may
// overflow to infinity.

#include "loss.h"

static float code(int32_t v, int32_t zero, float scale)
{
    return (float)(v - zero) * scale;
}

// Of all squares and of all gradients.
struct total {
    float sum, peak;
};

static void add(struct total *total, float d, float n)
{
    total->sum += d * d;
    total->peak = mg_larger(total->peak, mg_abs((d + d) / n));
}

void mg_mse_s32(const struct mg_ctx *ctx, const struct mg_step_mse_s32 *k)
{
    const int32_t *x = mg_at(ctx, k->x);
    const float *scale = mg_at(ctx, k->scale);
    const int8_t *target = mg_at(ctx, k->target);
    struct mg_loss to = MG_LOSS(ctx, k);
    const float n = (float)k->c;
    struct total total = {0.0f, 0.0f};
    for (uint32_t c = 0; c < k->c; c++)
        add(&total, (float)x[c] * scale[c] - code(target[c], k->zt, k->st), n);
    mg_loss_tell(&to, total.sum / n, total.peak, 0);
    for (uint32_t c = 0; c < k->c; c++) {
        const float d = (float)x[c] * scale[c] - code(target[c], k->zt, k->st);
        mg_loss_put(&to, c, (d + d) / n);
    }
}

void mg_mse_s8(const struct mg_ctx *ctx, const struct mg_step_mse_s8 *k)
{
    const int8_t *x = mg_at(ctx, k->x);
    const int8_t *target = mg_at(ctx, k->target);
    struct mg_loss to = MG_LOSS(ctx, k);
    const float n = (float)k->n;
    struct total total = {0.0f, 0.0f};
    for (uint32_t i = 0; i < k->n; i++)
        add(&total, code(x[i], k->zx, k->sx) - code(target[i], k->zt, k->st), n);
    mg_loss_tell(&to, total.sum / n, total.peak, 0);
    for (uint32_t i = 0; i < k->n; i++) {
        const float d = code(x[i], k->zx, k->sx) - code(target[i], k->zt, k->st);
        mg_loss_put(&to, i, (d + d) / n);
    }
}
