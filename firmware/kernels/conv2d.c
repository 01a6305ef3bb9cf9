// conv2d.c -- convolution: forward, input gradient, weight update.
// Letters   H W input size, I inputs, P Q output size, O outputs, R S kernel, IT trained inputs.   Row-major.
// x (H,W,I) s8   w (O,R,S,I) s8 symmetric, in two planes   b (O) s32   y, dy (P,Q,O) s8   dx (H,W,I) s8
// y  = clamp(zy + M[o] * (b[o] + sum_rsi w[o,r,s,i] * (x[p*sh + r*dh - pt, q*sw + s*dw - pl, i] - zx)))   Jacob 2018, eq. 7
// dx = round(Mx * sum_ors w[o,r,s,i] * (dy[p,q,o] * fold[o])), over the p, q that read this x              SPEC.md 3.5
// dw = sum_pq dy[p,q,o] * (x[...,i] - zx), then w -= factor[o] * dw                                        SPEC.md 3.6
// Rounding: fixed.h, error.h, update.h. Saved for backward: x. y may alias nothing; dx may be the bytes of skip or x.
// acc wraps at 32 bits: |acc| < 2^31 for R*S*I <= 66,000 (y) and P*Q <= 66,000 (dw); for dx the host chooses fold so.

#include "plane.h"
#include "update.h"

// One plane's part of output o. With dw = 1 and all channels in this plane, the taps of a row are one contiguous run.
static uint32_t window(const struct mg_step_conv2d_fwd_s8 *k, const struct mg_plane *plane, const int8_t *x, int32_t o,
                       int32_t top, int32_t left, struct mg_taps rows, struct mg_taps cols)
{
    const int32_t n = plane->channels;
    const bool joined = k->dw == 1 && n == k->i;
    const int32_t taps = cols.end - cols.first;
    const int32_t runs = joined ? 1 : taps;
    const int32_t length = joined ? taps * n : n;
    uint32_t acc = 0;
    for (int32_t r = rows.first; r < rows.end; r++) {
        const int8_t *w = plane->w + ((o * k->r + r) * k->s + cols.first) * n * plane->step;
        const int8_t *at = x + ((top + r * k->dh) * k->w + left + cols.first * k->dw) * k->i + plane->first;
        for (int32_t run = 0; run < runs; run++, w += n * plane->step)
            acc += mg_dot(w, plane->step, at + run * k->dw * k->i, k->zx, length);
    }
    return acc;
}

void mg_conv2d_fwd_s8(const struct mg_ctx *ctx, const struct mg_step_conv2d_fwd_s8 *k)
{
    const int8_t *x = mg_at(ctx, k->x);
    const int32_t *b = mg_at(ctx, k->b);
    const mg_requant *rq = mg_at(ctx, k->rq);
    int8_t *y = mg_at(ctx, k->y);
    const struct mg_plane trained = mg_plane_trained(mg_at(ctx, k->wt), k->ws, k->it);
    const struct mg_plane frozen = mg_plane_frozen(mg_at(ctx, k->wf), k->it, k->i);
    for (int32_t p = 0; p < k->p; p++) {
        const int32_t top = p * k->sh - k->pt;
        const struct mg_taps rows = mg_taps(top, k->dh, k->r, k->h);
        for (int32_t q = 0; q < k->q; q++) {
            const int32_t left = q * k->sw - k->pl;
            const struct mg_taps cols = mg_taps(left, k->dw, k->s, k->w);
            const bool inside = cols.first < cols.end;
            for (int32_t o = 0; o < k->o; o++) {
                uint32_t acc = (uint32_t)(b[o] >> k->bf);
                if (inside && trained.channels != 0)
                    acc += window(k, &trained, x, o, top, left, rows, cols);
                if (inside && frozen.channels != 0)
                    acc += window(k, &frozen, x, o, top, left, rows, cols);
                *y++ = mg_output8(mg_requantize(mg_wrap32(acc), rq[o].mult, rq[o].shift), k->zy, k->lo, k->hi);
            }
        }
    }
}

// The error that reaches channel c of a plane through all sources of one pixel.
static uint32_t gather(const struct mg_step_conv2d_bwd_x_s8 *k, const struct mg_plane *plane, const int8_t *dy,
                       const uint8_t *fold, int32_t c, struct mg_sources rows, struct mg_sources cols)
{
    const int32_t row = k->r * k->s * plane->channels * plane->step;
    uint32_t acc = 0;
    for (int32_t a = 0; a < rows.count; a++) {
        const int32_t r = rows.tap + a * rows.tap_pitch;
        const int32_t p = rows.out + a * rows.out_pitch;
        for (int32_t b = 0; b < cols.count; b++) {
            const int32_t s = cols.tap + b * cols.tap_pitch;
            const int32_t q = cols.out + b * cols.out_pitch;
            const int8_t *w = plane->w + ((r * k->s + s) * plane->channels + c) * plane->step;
            acc += mg_dot_folded(w, row, dy + (p * k->q + q) * k->o, fold, k->o);
        }
    }
    return acc;
}

void mg_conv2d_bwd_x_s8(const struct mg_ctx *ctx, const struct mg_step_conv2d_bwd_x_s8 *k)
{
    const int8_t *dy = mg_at(ctx, k->dy);
    const uint8_t *fold = mg_at(ctx, k->fold);
    const struct mg_plane trained = mg_plane_trained(mg_at(ctx, k->wt), k->ws, k->it);
    const struct mg_plane frozen = mg_plane_frozen(mg_at(ctx, k->wf), k->it, k->i);
    const int32_t outs = k->o != 0 ? k->p : 0;  // no output channel: no source
    struct mg_error error = MG_ERROR_BEGIN(ctx, k);
    size_t at = 0;
    for (int32_t h = 0; h < k->h; h++) {
        const struct mg_sources rows = mg_sources(h + k->pt, k->dh, k->sh, k->r, outs);
        for (int32_t w = 0; w < k->w; w++) {
            const struct mg_sources cols = mg_sources(w + k->pl, k->dw, k->sw, k->s, k->q);
            for (int32_t c = 0; c < trained.channels; c++)
                mg_error_put(&error, at++, mg_wrap32(gather(k, &trained, dy, fold, c, rows, cols)));
            for (int32_t c = 0; c < frozen.channels; c++)
                mg_error_put(&error, at++, mg_wrap32(gather(k, &frozen, dy, fold, c, rows, cols)));
        }
    }
    mg_error_end(&error);
}

// What both updates read.
struct gradient {
    const int8_t *dy, *x;
    int32_t h, w, i, it, p, q, o, r, s;
    int32_t sh, sw, dh, dw, pt, pl, zx;
};

#define GRADIENT(ctx, k)                                                                                              \
    {                                                                                                                 \
        mg_at((ctx), (k)->dy), mg_at((ctx), (k)->x), (k)->h, (k)->w, (k)->i, (k)->it, (k)->p, (k)->q, (k)->o, (k)->r, \
            (k)->s, (k)->sh, (k)->sw, (k)->dh, (k)->dw, (k)->pt, (k)->pl, (k)->zx                                     \
    }

// dw of output o, input i at the tap that reads x from (top, left) on; rows and cols: the p and q where that is inside x.
static int32_t sum_dw(const struct gradient *g, int32_t o, int32_t i, int32_t top, int32_t left, struct mg_taps rows,
                      struct mg_taps cols)
{
    uint32_t acc = 0;
    for (int32_t p = rows.first; p < rows.end; p++) {
        const int8_t *dy = g->dy + (p * g->q + cols.first) * g->o + o;
        const int8_t *x = g->x + ((top + p * g->sh) * g->w + left + cols.first * g->sw) * g->i + i;
        for (int32_t q = 0; q < cols.end - cols.first; q++)
            acc += (uint32_t)(dy[q * g->o] * (x[q * g->sw * g->i] - g->zx));
    }
    return mg_wrap32(acc);
}

static void update_all(const struct gradient *g, struct mg_update *update)
{
    size_t at = 0;
    for (int32_t o = 0; o < g->o; o++) {
        mg_update_channel(update, o);
        for (int32_t r = 0; r < g->r; r++) {
            const int32_t top = r * g->dh - g->pt;
            const struct mg_taps rows = mg_taps(top, g->sh, g->p, g->h);
            for (int32_t s = 0; s < g->s; s++) {
                const int32_t left = s * g->dw - g->pl;
                const struct mg_taps cols = mg_taps(left, g->sw, g->q, g->w);
                const bool inside = cols.first < cols.end;
                for (int32_t i = 0; i < g->it; i++)
                    mg_update_put(update, at++, inside ? sum_dw(g, o, i, top, left, rows, cols) : 0);
            }
        }
    }
}

void mg_conv2d_upd_q16(const struct mg_ctx *ctx, const struct mg_step_conv2d_upd_q16 *k)
{
    const struct gradient g = GRADIENT(ctx, k);
    struct mg_update update = MG_UPDATE_Q16(ctx, k);
    update_all(&g, &update);
}

void mg_conv2d_upd_sr8(const struct mg_ctx *ctx, const struct mg_step_conv2d_upd_sr8 *k)
{
    const struct gradient g = GRADIENT(ctx, k);
    struct mg_update update = MG_UPDATE_SR8(ctx, k);
    update_all(&g, &update);
}
