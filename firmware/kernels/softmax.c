// softmax.c -- softmax in fixed point, as TensorFlow Lite defines it for int8: forward, input gradient (the loss has its own).
// Letters   N batch, C classes.   x, dy, dx (N,C) s8   y (N,C) s8, scale 1/256, zero point -128
// y  = 256 * exp(beta * scale * (x - max x)) / sum - 128; differences below diff_min give -128
// dx = round(Mx * q * (256 * dy - sum dy * q)), q = y + 128                                     SPEC.md 3.5
// Q a.b below: b fraction bits. Products are srdhm. y may lie over x by rows (SPEC.md 3): a row of x is read three times.
// The sum is Q12.19: it holds 4095 ones; beyond, it wraps. Saved for backward: y. dx may lie over dy, y, skip or x, by elements.
// Backward wraps at 32 bits: below 2^31 where the q of a row add up to 65,000 or less; what forward has written adds up to about 256.

#include "error.h"

#define ONE INT32_MAX  // Q0.31, as near as it gets

enum { UNIT_BITS = 12 };  // integer bits of the sum

static int32_t shift_saturating(int32_t x, int32_t n)
{
    return mg_sat32((int64_t)x * ((int64_t)1 << n));
}

// e^a for -1/4 <= a < 0, Q0.31: Taylor series of fourth order around -1/8.
static int32_t exp_quarter(int32_t a)
{
    const int32_t exp_eighth = 1895147668;  // e^(-1/8)
    const int32_t third = 715827883;
    const int32_t x = a + (1 << 28);
    const int32_t x2 = mg_srdhm(x, x);
    const int32_t x3 = mg_srdhm(x2, x);
    const int32_t x4 = mg_srdhm(x2, x2);
    const int32_t higher = mg_rdivpot(mg_srdhm(mg_rdivpot(x4, 2) + x3, third) + x2, 1);  // x^4/24 + x^3/6 + x^2/2
    return mg_add32(exp_eighth, mg_srdhm(exp_eighth, x + higher));
}

// e^a for a <= 0 in Q5.26, result Q0.31: the fraction below 1/4 by series, the rest as a product of constants, one a bit.
static int32_t exp_negative(int32_t a)
{
    static const int32_t exp_of_bit[] = {
        1672461947,  // e^(-1/4)
        1302514674,  // e^(-1/2)
        790015084,   // e^-1
        290630308,   // e^-2
        39332535,    // e^-4
        720401,      // e^-8
        242,         // e^-16
    };
    const uint32_t quarter = 1u << 24;
    if (a == 0)
        return ONE;
    const uint32_t fraction = ((uint32_t)a & (quarter - 1u)) - quarter;
    const uint32_t rest = fraction - (uint32_t)a;
    int32_t e = exp_quarter(mg_wrap32(fraction << 5));
    for (size_t bit = 0; bit < sizeof exp_of_bit / sizeof exp_of_bit[0]; bit++)
        if (rest >> bit & quarter)
            e = mg_srdhm(e, exp_of_bit[bit]);
    return e;
}

// 1 / (1 + a) for 0 <= a < 1 in Q0.31: three Newton steps on half the denominator, from 48/17 - 32/17 d, in Q2.29.
static int32_t reciprocal(int32_t a)
{
    const int32_t half = (int32_t)(((int64_t)a + ONE + 1) / 2);
    int32_t x = 1515870810 + mg_srdhm(half, -1010580540);
    for (int step = 0; step < 3; step++) {
        const int32_t rest = (1 << 29) - mg_srdhm(half, x);
        x = mg_add32(x, shift_saturating(mg_srdhm(x, rest), 2));
    }
    return shift_saturating(x, 1);
}

static int32_t leading_zeros(uint32_t v)
{
    int32_t n = 0;
    while (n < 32 && v >> (31 - n) == 0)
        n++;
    return n;
}

static int32_t exp_scaled(const struct mg_step_softmax_fwd_s8 *k, int32_t d)
{
    return exp_negative(mg_srdhm(mg_wrap32((uint32_t)d << k->shift), k->mult));
}

static void softmax_row(const struct mg_step_softmax_fwd_s8 *k, const int8_t *x, int8_t *y)
{
    int32_t max = x[0];
    for (int32_t c = 1; c < k->c; c++)
        max = x[c] > max ? x[c] : max;
    uint32_t sum = 0;
    for (int32_t c = 0; c < k->c; c++)
        if (x[c] - max >= k->diff_min)
            sum += (uint32_t)mg_rdivpot(exp_scaled(k, x[c] - max), UNIT_BITS);
    const int32_t headroom = sum != 0 ? leading_zeros(sum) : 0;
    const int32_t inverse = reciprocal(mg_wrap32((sum << headroom) & 0x7FFFFFFFu));
    const int32_t shift = 31 + UNIT_BITS - headroom - 8;
    for (int32_t c = 0; c < k->c; c++) {
        y[c] = -128;
        if (x[c] - max >= k->diff_min && shift <= 31)
            y[c] = (int8_t)mg_clamp(mg_rdivpot(mg_srdhm(inverse, exp_scaled(k, x[c] - max)), shift) - 128, -128, 127);
    }
}

void mg_softmax_fwd_s8(const struct mg_ctx *ctx, const struct mg_step_softmax_fwd_s8 *k)
{
    const int8_t *x = mg_at(ctx, k->x);
    int8_t *y = mg_at(ctx, k->y);
    for (int32_t n = 0; n < k->n; n++)
        softmax_row(k, x + n * k->c, y + n * k->c);
}

void mg_softmax_bwd_x_s8(const struct mg_ctx *ctx, const struct mg_step_softmax_bwd_x_s8 *k)
{
    const int8_t *dy = mg_at(ctx, k->dy);
    const int8_t *y = mg_at(ctx, k->y);
    struct mg_error error = MG_ERROR_BEGIN(ctx, k, MG_BITS(ctx, k));
    size_t at = 0;
    for (int32_t n = 0; n < k->n; n++, dy += k->c, y += k->c) {
        uint32_t total = 0;
        for (int32_t c = 0; c < k->c; c++)
            total += (uint32_t)(dy[c] * (y[c] + 128));
        for (int32_t c = 0; c < k->c; c++)
            mg_error_put(&error, at++, mg_wrap32((uint32_t)(y[c] + 128) * ((uint32_t)(dy[c] * 256) - total)));
    }
    mg_error_end(&error);
}
