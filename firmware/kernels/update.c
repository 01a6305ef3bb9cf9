// update.c -- from an exact gradient to the stored weight.
// q16: Q8.8 with the half already added, so that the weight is the high byte.   sr8: int8, floor(dw * factor + u), 0 <= u < 1.

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

void mg_update_put(const struct mg_update *update, size_t at, int32_t dw)
{
    const struct mg_split f = update->factor;
    if (update->q16 != NULL) {
        int16_t *wt = update->q16 + at;
        *wt = (int16_t)mg_clamp64((int64_t)*wt - mg_scale(dw, f.mult, f.n - 8), -127 * 256, 127 * 256 + 255);
    } else {
        int8_t *wt = update->sr8 + at;
        const int32_t d = scale_randomly(dw, f.mult, f.n, mg_draw(update->key, (uint32_t)at));
        *wt = (int8_t)mg_clamp64((int64_t)*wt - d, -127, 127);
    }
}
