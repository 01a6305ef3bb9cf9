// fixed.h -- every rounding, saturation and bit trick of the runtime. SPEC.md sections 3.1 and 3.4; ref/fixed.py is the same.
//
// Integers wrap only through unsigned. `>>` of a negative number is the floor (gcc, clang and armclang define it so).
// float is IEEE binary32: each operation rounds once, to nearest even, in the order written.

#ifndef MG_FIXED_H
#define MG_FIXED_H

#include <float.h>
#include <string.h>

#include "plan.h"

#ifdef __FAST_MATH__
#error "build without -ffast-math: results must be the same bits on every core"
#endif
#if FLT_EVAL_METHOD != 0
#error "float expressions must be evaluated in float"
#endif
_Static_assert((-3 >> 1) == -2, ">> must be the floor");

static inline int32_t mg_wrap32(uint32_t v)
{
    return (int32_t)v;
}

static inline int32_t mg_add32(int32_t a, int32_t b)
{
    return mg_wrap32((uint32_t)a + (uint32_t)b);
}

static inline int32_t mg_clamp64(int64_t v, int32_t lo, int32_t hi)
{
    return v < lo ? lo : v > hi ? hi : (int32_t)v;
}

static inline int32_t mg_sat32(int64_t v)
{
    return mg_clamp64(v, INT32_MIN, INT32_MAX);
}

// min(max(v, lo), hi): hi wins where lo > hi
static inline int32_t mg_clamp(int32_t v, int32_t lo, int32_t hi)
{
    v = v > lo ? v : lo;
    return v < hi ? v : hi;
}

// round(a * b / 2^31), halves up; b is not INT32_MIN. The nudge and truncation of SPEC.md give the same number as this floor:
// for ab < 0, -floor((-ab + 2^30 - 1) / 2^31) = floor((ab + 2^30) / 2^31).
static inline int32_t mg_mul_q31(int32_t a, int32_t b)
{
    return (int32_t)(((int64_t)a * b + ((int64_t)1 << 30)) >> 31);
}

static inline int32_t mg_srdhm(int32_t a, int32_t b)
{
    return a == INT32_MIN && b == INT32_MIN ? INT32_MAX : mg_mul_q31(a, b);
}

// 0 <= n <= 31
static inline int32_t mg_rdivpot(int32_t x, int32_t n)
{
    const uint32_t mask = (1u << n) - 1u;
    const uint32_t remainder = (uint32_t)x & mask;
    const uint32_t threshold = (mask >> 1) + (x < 0 ? 1u : 0u);
    return (x >> n) + (remainder > threshold ? 1 : 0);
}

// mult >= 0, -31 <= shift <= 30. TensorFlow Lite's two roundings.
static inline int32_t mg_requantize(int32_t acc, int32_t mult, int32_t shift)
{
    const int32_t left = shift > 0 ? shift : 0;
    const int32_t right = shift > 0 ? 0 : -shift;
    return mg_rdivpot(mg_mul_q31(mg_wrap32((uint32_t)acc << left), mult), right);
}

// How the accumulators of a layer become its int8 outputs: one requant each, zero point and clamp in common.
struct mg_output {
    const mg_requant *rq;
    int32_t zy, lo, hi;
};

#define MG_OUTPUT(ctx, k) {mg_at((ctx), (k)->rq), (k)->zy, (k)->lo, (k)->hi}

// clamp(zy + v, lo, hi) for any v
static inline int8_t mg_output8(int32_t v, int32_t zy, int32_t lo, int32_t hi)
{
    return (int8_t)(zy + mg_clamp(v, lo - zy, hi - zy));
}

// y of channel o
static inline int8_t mg_output_of(const struct mg_output *to, int32_t o, int32_t acc)
{
    return mg_output8(mg_requantize(acc, to->rq[o].mult, to->rq[o].shift), to->zy, to->lo, to->hi);
}

// floor(v * mult / 2^n + 1/2), saturated. mult >= 0, any n; |v * mult| <= 2^62, so adding the half cannot overflow.
static inline int32_t mg_scale(int32_t v, int32_t mult, int32_t n)
{
    const int64_t p = (int64_t)v * mult;
    if (n > 62)
        return 0;
    if (n >= 1)
        return mg_sat32((p + ((int64_t)1 << (n - 1))) >> n);
    return mg_sat32((int64_t)mg_sat32(p) * ((int64_t)1 << (n < -31 ? 31 : -n)));
}

// ---- float ------------------------------------------------------------------------------------------------------------

static inline uint32_t mg_float_bits(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

static inline float mg_float_of(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

// A positive float as mult * 2^-n.
struct mg_split {
    int32_t mult;
    int32_t n;
};

// (0, 0) where f is zero, subnormal, negative, infinite or NaN.
static inline struct mg_split mg_split(float f)
{
    const uint32_t bits = mg_float_bits(f);
    const uint32_t exponent = bits >> 23;  // sign included: a negative f has 256 or more
    if (exponent == 0 || exponent >= 255)
        return (struct mg_split){0, 0};
    return (struct mg_split){(int32_t)((0x800000u | (bits & 0x7FFFFFu)) << 7), 157 - (int32_t)exponent};
}

// floor(v) saturated to int32; NaN gives 0.
static inline int32_t mg_floor32(float v)
{
    if (v >= 2147483648.0f)
        return INT32_MAX;
    if (v < -2147483648.0f)
        return INT32_MIN;
    if (!(v >= -2147483648.0f))
        return 0;
    const int32_t t = (int32_t)v;
    return (float)t > v ? t - 1 : t;
}

// e^x for x <= 0. Coefficients: Cephes (Moshier), single precision.
static inline float mg_exp(float x)
{
    if (x < -87.0f)
        return 0.0f;
    const int32_t k = mg_floor32(x * 1.44269504f + 0.5f);
    const float r = (x - (float)k * 0.693359375f) - (float)k * -2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    return mg_float_of(mg_float_bits(p) + ((uint32_t)k << 23));
}

// ln(x) for 1 <= x < 2^24.
static inline float mg_log(float x)
{
    const uint32_t bits = mg_float_bits(x);
    int32_t k = (int32_t)(bits >> 23) - 126;
    float f = mg_float_of((bits & 0x7FFFFFu) | 0x3F000000u);
    if (f < 0.70710678f) {
        f = f + f;
        k = k - 1;
    }
    const float u = f - 1.0f;
    const float z = u * u;
    float p = 7.0376836292e-2f;
    p = p * u - 1.1514610310e-1f;
    p = p * u + 1.1676998740e-1f;
    p = p * u - 1.2420140846e-1f;
    p = p * u + 1.4249322787e-1f;
    p = p * u - 1.6668057665e-1f;
    p = p * u + 2.0000714765e-1f;
    p = p * u - 2.4999993993e-1f;
    p = p * u + 3.3333331174e-1f;
    p = p * u * z;
    p = p + (float)k * -2.12194440e-4f;
    p = p - 0.5f * z;
    return (u + p) + (float)k * 0.693359375f;
}

// ---- random -----------------------------------------------------------------------------------------------------------

static inline uint32_t mg_mix(uint32_t x)
{
    x ^= x >> 16;
    x *= 0x7FEB352Du;
    x ^= x >> 15;
    x *= 0x846CA68Bu;
    x ^= x >> 16;
    return x;
}

// The key of one tensor in one training step; mg_draw gives its element k a uniform u32.
static inline uint32_t mg_draw_key(const mg_rng *rng, uint32_t stream)
{
    return mg_mix(mg_mix(mg_mix(rng->seed ^ 0x9E3779B9u) ^ rng->tick) ^ ((stream << 16) ^ 0x85EBCA6Bu));
}

static inline uint32_t mg_draw(uint32_t key, uint32_t k)
{
    return mg_mix(key + k);
}

#endif
