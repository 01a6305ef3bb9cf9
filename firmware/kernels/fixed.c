// fixed.c -- exponential and logarithm. SPEC.md section 3.4. Coefficients: Cephes (Moshier), single precision.

#include "fixed.h"

float mg_exp(float x)
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

float mg_log(float x)
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
