// update.c -- from an exact gradient to the stored weight.
// q16: Q8.8 with the half already added, so that the weight is the high byte; in a micro-batch (af > 0) the weight stays, and the
// low byte, as a number from -128 to 127 plus 128, sums up the steps in units of 2^-af.
// sr8: int8, floor(dw * factor + u), 0 <= u < 1.

#include "update.h"

struct mg_split mg_update_factor(const mg_args *args, const float *unit, float rate, int32_t r)
{
    struct mg_split factor = mg_split((args->lr * *unit) * rate);
    factor.n -= r;
    return factor;
}

void mg_update_channel(struct mg_update *update, int32_t o)
{
    update->factor = mg_update_factor(update->args, update->unit, update->rate[o], update->r);
}

// floor(dw * mult / 2^n + u), u the fraction with the bits of `draw`. |dw * mult| <= 2^62 and u * 2^n < 2^62: int64_t holds.
static int32_t scale_randomly(int32_t dw, int32_t mult, int32_t n, uint32_t draw)
{
    if (n < 1)
        return mg_scale(dw, mult, n);
    int64_t p = (int64_t)dw * mult;
    if (n > 62) {
        p >>= n - 62 < 63 ? n - 62 : 63;
        n = 62;
    }
    const int64_t u = n >= 32 ? (int64_t)draw * ((int64_t)1 << (n - 32)) : (int64_t)(draw >> (32 - n));
    return mg_sat32((p + u) >> n);
}

static int16_t step_q16(int16_t wt, struct mg_split f, int32_t af, int32_t dw)
{
    if (af == 0)
        return (int16_t)mg_clamp64((int64_t)wt - mg_scale(dw, f.mult, f.n - 8), -127 * 256, 127 * 256 + 255);
    const int32_t lo = wt & ~255;
    return (int16_t)mg_clamp64((int64_t)wt - mg_scale(dw, f.mult, f.n - af), lo, lo + 255);
}

void mg_update_put(const struct mg_update *update, size_t at, int32_t dw)
{
    const struct mg_split f = update->factor;
    if (update->q16 != NULL) {
        int16_t *wt = update->q16 + at;
        *wt = step_q16(*wt, f, update->af, dw);
    } else {
        int8_t *wt = update->sr8 + at;
        const int32_t d = scale_randomly(dw, f.mult, f.n, mg_draw(update->key, (uint32_t)at));
        *wt = (int8_t)mg_clamp64((int64_t)*wt - d, -127, 127);
    }
}

// a = low byte - 128 goes into the weight, rounded halves up; what is left stays below.
void mg_commit_s16(const struct mg_ctx *ctx, const struct mg_step_commit_s16 *k)
{
    int16_t *wt = mg_at(ctx, k->wt);
    for (uint32_t i = 0; i < k->n; i++) {
        const int32_t a = (wt[i] & 255) - 128;
        const int32_t d = (a + (1 << (k->af - 1))) >> k->af;
        const int32_t w = mg_clamp((wt[i] >> 8) + d, -127, 127);
        wt[i] = (int16_t)(w * 256 + 128 + a - d * (1 << k->af));
    }
}
