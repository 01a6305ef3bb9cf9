// error.h -- the end of every step that makes an error tensor. SPEC.md section 3.5.
//
// An error is int8, dL/dy = e * unit * 2^r with one r per tensor, which follows the largest |e| by a counting rule.
// A kernel calls begin once, put once for each element with its accumulator, end once. Elements
// are put upwards: dx may lie over skip or x, never over bits.

#ifndef MG_ERROR_H
#define MG_ERROR_H

#include "fixed.h"

#define MG_EXPONENT_MIN (-16)
#define MG_EXPONENT_MAX 15

// STATE is not trusted: exponents are clamped where they are read.
static inline int32_t mg_exponent_clamp(int32_t r)
{
    return mg_clamp(r, MG_EXPONENT_MIN, MG_EXPONENT_MAX);
}

static inline int32_t mg_exponent_r(const struct mg_ctx *ctx, mg_ref ref)
{
    const mg_exponent *exponent = mg_at(ctx, ref);
    return mg_exponent_clamp(exponent->r);
}

struct mg_error {
    int8_t *dx;
    mg_exponent *rx;
    const int8_t *skip;   // NULL: no skip error
    const int8_t *x;      // NULL: no mask from x
    const uint8_t *bits;  // NULL: no mask of bits
    int32_t mult, n;
    int32_t skip_mult, skip_n;
    int32_t lo, hi;  // the error passes where lo < x < hi, or where bit k % 8 of byte k / 8 is set
    int32_t r;
    uint32_t peak;  // largest |e| before the clamp
};

// The bits of a record that can have them; the others give NULL.
#define MG_BITS(ctx, step) ((step)->has_bits ? mg_at((ctx), (step)->bits) : NULL)

// What the records of all such steps have in common, read from any of them.
#define MG_ERROR_BEGIN(ctx, step, mask)                                                            \
    mg_error_begin(                                                                                \
        (struct mg_error){                                                                         \
            .dx = mg_at((ctx), (step)->dx),                                                        \
            .rx = mg_at((ctx), (step)->rx),                                                        \
            .skip = (step)->has_skip ? mg_at((ctx), (step)->skip) : NULL,                          \
            .x = (step)->has_mask ? mg_at((ctx), (step)->x) : NULL,                                \
            .bits = (mask),                                                                        \
            .mult = (step)->mult,                                                                  \
            .n = (step)->shift,                                                                    \
            .skip_mult = (step)->skip_mult,                                                        \
            .skip_n = (step)->skip_shift,                                                          \
            .lo = (step)->lo,                                                                      \
            .hi = (step)->hi,                                                                      \
        },                                                                                         \
        mg_exponent_r((ctx), (step)->ry), (step)->has_skip ? mg_exponent_r((ctx), (step)->rskip) : 0)

// Takes the exponent for this sample; r_in and r_skip are those of the inputs.
struct mg_error mg_error_begin(struct mg_error error, int32_t r_in, int32_t r_skip);

// Element `at` from its accumulator.
void mg_error_put(struct mg_error *error, size_t at, int32_t acc);

// Chooses the exponent for the next sample.
void mg_error_end(const struct mg_error *error);

#endif
