// fixed.h -- every rounding, saturation and bit trick of the runtime. SPEC.md sections 3.1 and 3.4; ref/fixed.py is the same.
//
// Integers wrap only through unsigned. `>>` of a negative number is the floor (gcc, clang and armclang define it so).
// float is IEEE binary32: each operation rounds once, to nearest even, in the order written.

#ifndef MG_FIXED_H
#define MG_FIXED_H

#include <float.h>
#include <string.h>

#include "plan.h"

#if defined __FAST_MATH__ || defined __ASSOCIATIVE_MATH__ || defined __RECIPROCAL_MATH__ || __FINITE_MATH_ONLY__
#error "build without -ffast-math and its parts: results must be the same bits on every core"
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

// mg_rdivpot in four instructions, for 1 <= n <= 31 and -2^31 < x < 2^31 - 1: neither sum overflows. Products of mg_mul_q31 with
// a multiplier >= 0 are such.
static inline int32_t mg_round_down(int32_t x, int32_t n)
{
    return (((x + (x >> 31)) >> (n - 1)) + 1) >> 1;
}

// floor(v * mult / 2^n + 1/2), saturated. mult >= 0, any n; |v * mult| <= 2^62, so adding the half cannot overflow.
static inline int32_t mg_scale(int32_t v, int32_t mult, int32_t n)
{
    const int64_t p = (int64_t)v * mult;
    if (n > 62)
        return 0;
    if (n >= 33)  // nearly always: the half is all in the high word, |p >> 32| <= 2^30
        return ((int32_t)(p >> 32) + (1 << (n - 33))) >> (n - 32);
    if (n >= 1)
        return mg_sat32((p + ((int64_t)1 << (n - 1))) >> n);
    return mg_sat32((int64_t)mg_sat32(p) * ((int64_t)1 << (n < -31 ? 31 : -n)));
}

// acc * mult * 2^(shift - 31) with mult >= 0, -31 <= shift <= 30: rounded twice as TensorFlow Lite does, or once, halves up,
// and saturated. |acc * mult| <= 2^62, so adding the half cannot overflow.
enum { MG_ROUND_TWICE = 0, MG_ROUND_ONCE = 1 };

// `rounding` is one of these. Where the innermost loop requantizes, it is a constant of an MG_INLINE function, which stands
// there once for each.
#define MG_INLINE static inline __attribute__((always_inline))

// A function with an inner loop whose registers should be its own.
#define MG_APART static __attribute__((noinline))

MG_INLINE int32_t mg_requantize(int32_t acc, int32_t mult, int32_t shift, int32_t rounding)
{
    if (rounding == MG_ROUND_ONCE)
        return mg_sat32(((int64_t)acc * mult + ((int64_t)1 << (30 - shift))) >> (31 - shift));
    if (shift >= 0)
        return mg_mul_q31(mg_wrap32((uint32_t)acc << shift), mult);
    return mg_round_down(mg_mul_q31(acc, mult), -shift);
}

// How the accumulators of a layer become its int8 outputs: one requant each; rounding, zero point and clamp in common.
struct mg_output {
    const mg_requant *rq;
    int32_t rounding, zy, lo, hi;
};

#define MG_OUTPUT(ctx, k) {mg_at((ctx), (k)->rq), (k)->rounding, (k)->zy, (k)->lo, (k)->hi}

// clamp(zy + v, lo, hi) for any v
static inline int8_t mg_output8(int32_t v, int32_t zy, int32_t lo, int32_t hi)
{
    return (int8_t)(zy + mg_clamp(v, lo - zy, hi - zy));
}

// y of channel o
static inline int8_t mg_output_of(const struct mg_output *to, int32_t o, int32_t acc)
{
    return mg_output8(mg_requantize(acc, to->rq[o].mult, to->rq[o].shift, to->rounding), to->zy, to->lo, to->hi);
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

// In fixed.c. e^x for x <= 0.
float mg_exp(float x);

// ln(x) for 1 <= x < 2^24.
float mg_log(float x);

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
