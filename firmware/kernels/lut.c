// lut.c -- any function of one int8 value, as a table: forward, input gradient.
// Letters   n elements.   x, y, dy, dx (n) s8   table (256) s8   slope (256) s16
// y  = table[x + 128]
// dx = round(Mx * dy * slope[x + 128])                        SPEC.md 3.5
// Rounding: error.h. Saved for backward: x. By elements (SPEC.md 3), y may lie over x, and dx over dy,
// skip or x. |dy * slope| <= 2^22.

#include "error.h"

void mg_lut_fwd_s8(const struct mg_ctx *ctx, const struct mg_step_lut_fwd_s8 *k)
{
    const int8_t *x = mg_at(ctx, k->x);
    const int8_t *table = mg_at(ctx, k->table);
    int8_t *y = mg_at(ctx, k->y);
    for (uint32_t n = 0; n < k->n; n++)
        y[n] = table[x[n] + 128];
}

void mg_lut_bwd_x_s8(const struct mg_ctx *ctx, const struct mg_step_lut_bwd_x_s8 *k)
{
    const int8_t *dy = mg_at(ctx, k->dy);
    const int8_t *x = mg_at(ctx, k->x);
    const int16_t *slope = mg_at(ctx, k->slope);
    struct mg_error error = MG_ERROR_BEGIN(ctx, k, NULL);
    for (uint32_t n = 0; n < k->n; n++)
        mg_error_put(&error, n, dy[n] * slope[x[n] + 128]);
    mg_error_end(&error);
}
