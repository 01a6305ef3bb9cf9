// row.h -- the outputs of a few channels along a row: their sums, and what sums become.
//
// Pixel after pixel, so that weights are loaded for several. Sums are int32 that cannot overflow, not wrapping unsigned: compilers
// reorder those, and then run out of registers.

#ifndef MG_ROW_H
#define MG_ROW_H

#include "fixed.h"

enum {
    MG_CHUNK = 16,  // outputs of a channel whose sums stand on the stack; even
};

// sum[c][j]: w0 (c = 0) or w1 (c = 1), `step` (1 or 2) from weight to weight, times x of pixel j of n <= MG_CHUNK, whose channels
// stand one behind the other. |sum| <= 2^14 * inputs. Of an odd number, sum[c][n] is written as well.
void mg_dot_pair(int32_t sum[2][MG_CHUNK], const int8_t *w0, const int8_t *w1, int32_t step, const int8_t *x, int32_t inputs, int32_t n);

// Windows that slide along rows of one channel. A kernel lays out what is under them as int16, the zero point taken off and 0 in the
// padding, so that no window is cut at its sides. |w * e| <= 2^22 whatever e is: sums cannot overflow up to 511 taps.
//
// The rows under the windows: `count` from element `at` of e on, `step` apart, back by `size` at the end of a ring. w (R,S): the
// weights, from the first of those rows on.
struct mg_rows {
    const int16_t *e;
    const int8_t *w;
    int32_t at, step, size, count;
};

// sum[j] of window j of n <= MG_CHUNK: over its rows and `taps` columns, dw apart; windows are sw apart.
void mg_slide(int32_t *sum, int32_t n, const struct mg_rows *rows, int32_t taps, int32_t dw, int32_t sw);

// How the sums of a layer become int8. lo and hi are above the zero point. `byte`: as nearly all layers with a ReLU have it, rounded
// twice and clamped to all of 0 … 255 above the zero point.
struct mg_ends {
    int32_t rounding, zero, lo, hi;
    bool byte;
};

static inline struct mg_ends mg_ends_of(int32_t rounding, int32_t zero, int32_t lo, int32_t hi)
{
    return (struct mg_ends){rounding, zero, lo - zero, hi - zero, rounding == MG_ROUND_TWICE && lo - zero == 0 && hi - zero == 255};
}

// Above the zero point, where the ends are such a byte and rq shifts to the right.
MG_INLINE int32_t mg_end_byte(int32_t acc, mg_requant rq)
{
    return mg_clamp(mg_round_down(mg_mul_q31(acc, rq.mult), -rq.shift), 0, 255);
}

MG_INLINE int32_t mg_end_any(const struct mg_ends *ends, int32_t acc, mg_requant rq)
{
    return mg_clamp(mg_requantize(acc, rq.mult, rq.shift, ends->rounding), ends->lo, ends->hi);
}

// y of n sums of a channel, `pitch` apart. start: what is added to every sum; it may wrap.
void mg_put_outputs(const struct mg_ends *ends, uint32_t start, mg_requant rq, const int32_t *sum, int32_t n, int8_t *y, int32_t pitch);

#endif
