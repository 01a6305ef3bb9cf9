// pool.c -- average and maximum pool: forward, input gradient; mean over a whole map: forward (its gradient is the pool's).
// Letters   H W input size, P Q output size, C channels, R S window.   Row-major.
// x (H,W,C) s8   y, dy (P,Q,C) s8   dx (H,W,C) s8   K[p,q] taps of a window that are inside x
// average: y  = clamp(round(sum x / K)), halves away from zero; the scales of x and y are equal
//          dx = round(Mx * sum over the windows around (h,w) of dy[p,q,c] * (2^20 + K/2) / K)      SPEC.md 3.5
// maximum: y  = clamp(max x), -128 where K = 0
//          dx = round(Mx * 2^12 * sum of dy over the windows whose first largest tap is this one)
// mean:    y[c] = clamp(zy + M * (bias + sum_hw x[h,w,c]))
// Rounding: fixed.h, error.h. Saved for backward: x of the maximum. Over each other in the order of SPEC.md 3: y over x, dx over dy
// and over x of the maximum by rows, dx over skip and x of the average by elements; not the mean's.
// |sum x| <= R*S*128 < 2^24. Backward wraps at 32 bits: below 2^31 for up to 16 windows around a pixel, whatever K; for the maximum
// up to 4,095.

#include "error.h"

// The part of one window that lies inside x, along one axis: [first, end), maybe empty.
struct span {
    int32_t first, end;
};

static struct span inside(int32_t start, int32_t length, int32_t size)
{
    struct span s = {start > 0 ? start : 0, start + length < size ? start + length : size};
    s.end = s.end > s.first ? s.end : s.first;
    return s;
}

void mg_avgpool_fwd_s8(const struct mg_ctx *ctx, const struct mg_step_avgpool_fwd_s8 *k)
{
    const int8_t *x = mg_at(ctx, k->x);
    int8_t *y = mg_at(ctx, k->y);
    for (int32_t p = 0; p < k->p; p++) {
        const struct span rows = inside(p * k->sh - k->pt, k->r, k->h);
        for (int32_t q = 0; q < k->q; q++) {
            const struct span cols = inside(q * k->sw - k->pl, k->s, k->w);
            const int32_t taps = (rows.end - rows.first) * (cols.end - cols.first);
            for (int32_t c = 0; c < k->c; c++) {
                int32_t sum = 0;
                for (int32_t h = rows.first; h < rows.end; h++)
                    for (int32_t w = cols.first; w < cols.end; w++)
                        sum += x[(h * k->w + w) * k->c + c];
                const int32_t half = sum > 0 ? taps / 2 : -(taps / 2);
                *y++ = (int8_t)mg_clamp(taps != 0 ? (sum + half) / taps : 0, k->lo, k->hi);
            }
        }
    }
}

void mg_mean_fwd_s8(const struct mg_ctx *ctx, const struct mg_step_mean_fwd_s8 *k)
{
    const int8_t *x = mg_at(ctx, k->x);
    int8_t *y = mg_at(ctx, k->y);
    for (int32_t c = 0; c < k->c; c++) {
        int32_t acc = k->bias;
        for (int32_t at = c; at < k->h * k->w * k->c; at += k->c)
            acc = mg_add32(acc, x[at]);
        y[c] = mg_output8(mg_requantize(acc, k->mult, k->shift, k->rounding), k->zy, k->lo, k->hi);
    }
}

// The outputs whose windows contain one input position, along one axis. `at` is the position plus the padding.
static struct span windows(int32_t at, int32_t stride, int32_t length, int32_t outs)
{
    struct span s = {at < length ? 0 : (at - length) / stride + 1, at / stride + 1};
    s.end = s.end < outs ? s.end : outs;
    return s;
}

// What one window hands to each of its inputs, Q20.
static uint32_t share(const struct mg_step_avgpool_bwd_x_s8 *k, int32_t p, int32_t q)
{
    const struct span rows = inside(p * k->sh - k->pt, k->r, k->h);
    const struct span cols = inside(q * k->sw - k->pl, k->s, k->w);
    const uint32_t taps = (uint32_t)(rows.end - rows.first) * (uint32_t)(cols.end - cols.first);
    return ((1u << 20) + taps / 2) / taps;
}

void mg_avgpool_bwd_x_s8(const struct mg_ctx *ctx, const struct mg_step_avgpool_bwd_x_s8 *k)
{
    const int8_t *dy = mg_at(ctx, k->dy);
    struct mg_error error = MG_ERROR_BEGIN(ctx, k, MG_BITS(ctx, k));
    size_t at = 0;
    for (int32_t h = 0; h < k->h; h++) {
        const struct span rows = windows(h + k->pt, k->sh, k->r, k->p);
        for (int32_t w = 0; w < k->w; w++) {
            const struct span cols = windows(w + k->pl, k->sw, k->s, k->q);
            const bool read = rows.first < rows.end && cols.first < cols.end;
            const uint32_t first = read ? share(k, rows.first, cols.first) : 0;  // often the only window: no division a channel
            for (int32_t c = 0; c < k->c; c++) {
                uint32_t acc = 0;
                for (int32_t p = rows.first; p < rows.end; p++)
                    for (int32_t q = cols.first; q < cols.end; q++)
                        acc += (uint32_t)dy[(p * k->q + q) * k->c + c] * (p == rows.first && q == cols.first ? first : share(k, p, q));
                mg_error_put(&error, at++, mg_wrap32(acc));
            }
        }
    }
    mg_error_end(&error);
}

void mg_maxpool_fwd_s8(const struct mg_ctx *ctx, const struct mg_step_maxpool_fwd_s8 *k)
{
    const int8_t *x = mg_at(ctx, k->x);
    int8_t *y = mg_at(ctx, k->y);
    for (int32_t p = 0; p < k->p; p++) {
        const struct span rows = inside(p * k->sh - k->pt, k->r, k->h);
        for (int32_t q = 0; q < k->q; q++) {
            const struct span cols = inside(q * k->sw - k->pl, k->s, k->w);
            for (int32_t c = 0; c < k->c; c++) {
                int32_t max = -128;
                for (int32_t h = rows.first; h < rows.end; h++) {
                    for (int32_t w = cols.first; w < cols.end; w++) {
                        const int32_t v = x[(h * k->w + w) * k->c + c];
                        max = v > max ? v : max;
                    }
                }
                *y++ = (int8_t)mg_clamp(max, k->lo, k->hi);
            }
        }
    }
}

// Whether (h, w) is the first largest tap of channel c in window (p, q), which contains it: larger than every tap before it, and
// not smaller than any behind it.
static bool is_maximum(const struct mg_step_maxpool_bwd_x_s8 *k, const int8_t *x, int32_t p, int32_t q, int32_t h, int32_t w, int32_t c)
{
    const struct span rows = inside(p * k->sh - k->pt, k->r, k->h);
    const struct span cols = inside(q * k->sw - k->pl, k->s, k->w);
    const int32_t v = x[(h * k->w + w) * k->c + c];
    for (int32_t i = rows.first; i < rows.end; i++) {
        for (int32_t j = cols.first; j < cols.end; j++) {
            const int32_t other = x[(i * k->w + j) * k->c + c];
            const bool before = i < h || (i == h && j < w);
            if (other > v || (other == v && before))
                return false;
        }
    }
    return true;
}

void mg_maxpool_bwd_x_s8(const struct mg_ctx *ctx, const struct mg_step_maxpool_bwd_x_s8 *k)
{
    const int8_t *dy = mg_at(ctx, k->dy);
    const int8_t *x = mg_at(ctx, k->x);
    struct mg_error error = MG_ERROR_BEGIN(ctx, k, NULL);
    size_t at = 0;
    for (int32_t h = 0; h < k->h; h++) {
        const struct span rows = windows(h + k->pt, k->sh, k->r, k->p);
        for (int32_t w = 0; w < k->w; w++) {
            const struct span cols = windows(w + k->pl, k->sw, k->s, k->q);
            for (int32_t c = 0; c < k->c; c++) {
                int32_t acc = 0;
                for (int32_t p = rows.first; p < rows.end; p++)
                    for (int32_t q = cols.first; q < cols.end; q++)
                        if (is_maximum(k, x, p, q, h, w, c))
                            acc = mg_add32(acc, dy[(p * k->q + q) * k->c + c]);
                mg_error_put(&error, at++, mg_wrap32((uint32_t)acc << 12));
            }
        }
    }
    mg_error_end(&error);
}
