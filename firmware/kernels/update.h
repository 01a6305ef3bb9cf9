// update.h -- the end of every step that updates parameters: from an exact gradient to the stored value. SPEC.md section 3.6.
//
// In real units: stored -= lr * gradient / scale^2 (quantization-aware scaling, arXiv 2206.15472, Eq. 4). The host has put the
// scales into rate[o]; the rest is per sample. Saturating and rounded: truncation and wrapping both ruin learning.

#ifndef MG_UPDATE_H
#define MG_UPDATE_H

#include "error.h"

// The weights of one step and how they change: q16, or sr8 with its key of random numbers.
struct mg_update {
    const mg_args *args;
    const float *unit;
    const float *rate;
    int32_t r;     // exponent of dy
    int16_t *q16;  // NULL: sr8
    int32_t af;    // of q16: 0, or fraction bits of the sum of a micro-batch
    int8_t *sr8;
    uint32_t key;
    struct mg_split factor;  // of the output channel that mg_update_channel has chosen
};

#define MG_UPDATE_COMMON(ctx, k)                                                                              \
    .args = mg_at((ctx), (k)->args), .unit = mg_at((ctx), (k)->unit), .rate = mg_at((ctx), (k)->rate),        \
    .r = mg_exponent_r((ctx), (k)->ry)
#define MG_UPDATE_Q16(ctx, k) {MG_UPDATE_COMMON(ctx, k), .q16 = mg_at((ctx), (k)->wt), .af = (k)->af}
#define MG_UPDATE_SR8(ctx, k) \
    {MG_UPDATE_COMMON(ctx, k), .sr8 = mg_at((ctx), (k)->wt), .key = mg_draw_key(mg_at((ctx), (k)->rng), (k)->stream)}

// (lr * unit) * rate * 2^r as mult * 2^-n.
struct mg_split mg_update_factor(const mg_args *args, const float *unit, float rate, int32_t r);

// Before the weights of output channel o.
void mg_update_channel(struct mg_update *update, int32_t o);

// Subtracts the gradient dw, times the channel's factor, from weight `at`, or from the sum below it.
void mg_update_put(const struct mg_update *update, size_t at, int32_t dw);

#endif
