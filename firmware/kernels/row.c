// row.c -- sums along a row: of two channels and two pixels at a time, and of four windows of a channel at a time.

#include "row.h"

enum { LANES = 4 };

MG_INLINE void dot_pair(int32_t sum[2][MG_CHUNK], const int8_t *w0, const int8_t *w1, int32_t step, const int8_t *x, int32_t inputs,
                        int32_t n)
{
    for (int32_t v = 0; v < n; v += 2, x += 2 * inputs) {
        const int8_t *x1 = v + 1 < n ? x + inputs : x;
        int32_t a0 = 0, a1 = 0, b0 = 0, b1 = 0;
#pragma GCC unroll 4
        for (int32_t i = 0; i < inputs; i++) {
            a0 += w0[i * step] * x[i];
            b0 += w1[i * step] * x[i];
            a1 += w0[i * step] * x1[i];
            b1 += w1[i * step] * x1[i];
        }
        sum[0][v] = a0;
        sum[0][v + 1] = a1;
        sum[1][v] = b0;
        sum[1][v + 1] = b1;
    }
}

void mg_dot_pair(int32_t sum[2][MG_CHUNK], const int8_t *w0, const int8_t *w1, int32_t step, const int8_t *x, int32_t inputs, int32_t n)
{
    if (step == 1)
        dot_pair(sum, w0, w1, 1, x, inputs, n);
    else
        dot_pair(sum, w0, w1, 2, x, inputs, n);
}

// n >= 4 windows, sw apart; the last of a number that is no multiple of 4 go with those before.
MG_INLINE void slide(int32_t *sum, int32_t n, const struct mg_rows *rows, int32_t taps, int32_t sw)
{
    for (int32_t q = 0; q < n; q += LANES) {
        const int32_t first = q + LANES <= n ? q : n - LANES;
        const int8_t *w = rows->w;
        int32_t a0 = 0, a1 = 0, a2 = 0, a3 = 0, at = rows->at;
        for (int32_t r = rows->count; r > 0; r--, w += taps) {
            const int16_t *e = rows->e + at + first * sw;
#pragma GCC unroll 7
            for (int32_t s = 0; s < taps; s++) {
                a0 += w[s] * e[s];
                a1 += w[s] * e[s + sw];
                a2 += w[s] * e[s + 2 * sw];
                a3 += w[s] * e[s + 3 * sw];
            }
            at += rows->step;
            at -= at >= rows->size ? rows->size : 0;
        }
        sum[first] = a0;
        sum[first + 1] = a1;
        sum[first + 2] = a2;
        sum[first + 3] = a3;
    }
}

// Any number of windows with taps dw apart.
static void slide_any(int32_t *sum, int32_t n, const struct mg_rows *rows, int32_t taps, int32_t dw, int32_t sw)
{
    for (int32_t q = 0; q < n; q++) {
        const int8_t *w = rows->w;
        int32_t a = 0, at = rows->at;
        for (int32_t r = rows->count; r > 0; r--, w += taps) {
            const int16_t *e = rows->e + at + q * sw;
            for (int32_t s = 0; s < taps; s++)
                a += w[s] * e[s * dw];
            at += rows->step;
            at -= at >= rows->size ? rows->size : 0;
        }
        sum[q] = a;
    }
}

#define CASE(taps, sw) ((taps) << 8 | (sw))

// The windows of nearly all nets are constants here, so that the compiler sees which elements several windows read.
void mg_slide(int32_t *sum, int32_t n, const struct mg_rows *rows, int32_t taps, int32_t dw, int32_t sw)
{
    switch (n >= LANES && dw == 1 ? CASE(taps, sw) : 0) {
    case CASE(3, 1):
        slide(sum, n, rows, 3, 1);
        break;
    case CASE(3, 2):
        slide(sum, n, rows, 3, 2);
        break;
    case CASE(5, 1):
        slide(sum, n, rows, 5, 1);
        break;
    case CASE(5, 2):
        slide(sum, n, rows, 5, 2);
        break;
    case CASE(7, 1):
        slide(sum, n, rows, 7, 1);
        break;
    case CASE(7, 2):
        slide(sum, n, rows, 7, 2);
        break;
    default:
        slide_any(sum, n, rows, taps, dw, sw);
    }
}

void mg_put_outputs(const struct mg_ends *ends, uint32_t start, mg_requant rq, const int32_t *sum, int32_t n, int8_t *y, int32_t pitch)
{
    const int32_t zero = ends->zero;
    if (ends->byte && rq.shift < 0)
        for (int32_t j = 0; j < n; j++, y += pitch)
            *y = (int8_t)(zero + mg_end_byte(mg_wrap32(start + (uint32_t)sum[j]), rq));
    else
        for (int32_t j = 0; j < n; j++, y += pitch)
            *y = (int8_t)(zero + mg_end_any(ends, mg_wrap32(start + (uint32_t)sum[j]), rq));
}
