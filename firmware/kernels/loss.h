// loss.h -- what all losses have in common: where they write, and how gradients become codes. SPEC.md section 3.3.
//
// A loss computes every gradient twice, once for the peak and once for its code: there is no array of floats. A float that
// overflows gives an infinite loss or a gradient that is clamped, never anything undefined.

#ifndef MG_LOSS_H
#define MG_LOSS_H

#include "fixed.h"

struct mg_loss {
    const mg_args *args;
    int8_t *dy;
    float *unit;
    mg_exponent *ry;
    mg_result *result;
    bool skipped;
    float step;  // what *unit is, for mg_loss_put
};

#define MG_LOSS(ctx, k)                                                                                       \
    {                                                                                                         \
        .args = mg_at((ctx), (k)->args), .dy = mg_at((ctx), (k)->dy), .unit = mg_at((ctx), (k)->unit),        \
        .ry = mg_at((ctx), (k)->ry), .result = mg_at((ctx), (k)->result)                                      \
    }

static inline float mg_abs(float v)
{
    return v < 0.0f ? -v : v;
}

static inline float mg_larger(float a, float b)
{
    return b > a ? b : a;
}

// Decides from the largest gradient whether the sample is skipped; writes unit, ry and result. A peak of 0, or one too small to be
// divided by 127, has nothing to teach.
static inline void mg_loss_tell(struct mg_loss *to, float loss, float peak, int32_t argmax)
{
    to->step = peak / 127.0f;
    to->skipped = peak < to->args->skip || to->step == 0.0f;
    to->step = to->skipped ? 0.0f : to->step;
    *to->unit = to->step;
    *to->ry = (mg_exponent){0};
    *to->result = (mg_result){.loss = loss, .peak = peak, .argmax = argmax, .skipped = to->skipped};
}

// The code of gradient n.
static inline void mg_loss_put(const struct mg_loss *to, uint32_t n, float g)
{
    to->dy[n] = to->skipped ? 0 : (int8_t)mg_clamp(mg_floor32(g / to->step + 0.5f), -127, 127);
}

#endif
