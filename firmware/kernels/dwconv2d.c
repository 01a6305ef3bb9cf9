// dwconv2d.c -- depthwise convolution: forward, input gradient, weight update.
// Letters   H W input size, I inputs, P Q output size, M outputs per input, O = I*M outputs, OT trained outputs, R S kernel.
// x (H,W,I) s8   w (O,R,S) s8 symmetric, outputs < OT in wt, the others in wf   b (O) s32   y, dy (P,Q,O) s8   dx (H,W,I) s8
// y  = clamp(zy + M[o] * (b[o] + sum_rs w[o,r,s] * (x[p*sh + r*dh - pt, q*sw + s*dw - pl, o/M] - zx)))
// dx = round(Mx * sum_ors w[o,r,s] * (dy[p,q,o] * fold[o])), o over the M outputs of the input       SPEC.md 3.5
// dw = sum_pq dy[p,q,o] * (x[...,o/M] - zx), then w -= factor[o] * dw                                SPEC.md 3.6
// Rounding: fixed.h, error.h, update.h. Saved for backward: x. y may alias nothing; dx may be the bytes of skip or x.
// acc wraps at 32 bits: |acc| < 2^31 for every R, S (y) and for P*Q <= 66,000 (dw); for dx the host chooses fold so.

#include "plane.h"
#include "update.h"

// The weights of one output channel, R*S of them.
static struct mg_plane channel(const int8_t *wt, const int8_t *wf, int32_t ws, int32_t trained, int32_t o, int32_t taps)
{
    if (o < trained)
        return (struct mg_plane){wt + (ws - 1) + o * taps * ws, ws, 0, 1};
    return (struct mg_plane){wf + (o - trained) * taps, 1, 0, 1};
}

void mg_dwconv2d_fwd_s8(const struct mg_ctx *ctx, const struct mg_step_dwconv2d_fwd_s8 *k)
{
    const int8_t *x = mg_at(ctx, k->x);
    const int8_t *wt = mg_at(ctx, k->wt);
    const int8_t *wf = mg_at(ctx, k->wf);
    const int32_t *b = mg_at(ctx, k->b);
    const mg_requant *rq = mg_at(ctx, k->rq);
    int8_t *y = mg_at(ctx, k->y);
    for (int32_t p = 0; p < k->p; p++) {
        const int32_t top = p * k->sh - k->pt;
        const struct mg_taps rows = mg_taps(top, k->dh, k->r, k->h);
        for (int32_t q = 0; q < k->q; q++) {
            const int32_t left = q * k->sw - k->pl;
            const struct mg_taps cols = mg_taps(left, k->dw, k->s, k->w);
            const struct mg_taps none = {0, 0};
            const struct mg_taps inside = cols.first < cols.end ? rows : none;
            for (int32_t o = 0, i = 0; i < k->i; i++) {
                for (int32_t m = 0; m < k->m; m++, o++) {
                    const struct mg_plane plane = channel(wt, wf, k->ws, k->ot, o, k->r * k->s);
                    uint32_t acc = (uint32_t)(b[o] >> k->bf);
                    for (int32_t r = inside.first; r < inside.end; r++) {
                        const int8_t *w = plane.w + (r * k->s + cols.first) * plane.step;
                        const int8_t *at = x + ((top + r * k->dh) * k->w + left + cols.first * k->dw) * k->i + i;
                        for (int32_t s = 0; s < cols.end - cols.first; s++)
                            acc += (uint32_t)(w[s * plane.step] * (at[s * k->dw * k->i] - k->zx));
                    }
                    *y++ = mg_output8(mg_requantize(mg_wrap32(acc), rq[o].mult, rq[o].shift), k->zy, k->lo, k->hi);
                }
            }
        }
    }
}

// The error that output o sends to its input through all sources of one pixel.
static uint32_t gather(const struct mg_step_dwconv2d_bwd_x_s8 *k, const struct mg_plane *plane, const int8_t *dy, int32_t fold,
                       struct mg_sources rows, struct mg_sources cols)
{
    uint32_t acc = 0;
    for (int32_t a = 0; a < rows.count; a++) {
        const int32_t r = rows.tap + a * rows.tap_pitch;
        const int32_t p = rows.out + a * rows.out_pitch;
        for (int32_t b = 0; b < cols.count; b++) {
            const int32_t s = cols.tap + b * cols.tap_pitch;
            const int32_t q = cols.out + b * cols.out_pitch;
            acc += (uint32_t)(plane->w[(r * k->s + s) * plane->step] * (dy[(p * k->q + q) * k->o] * fold));
        }
    }
    return acc;
}

void mg_dwconv2d_bwd_x_s8(const struct mg_ctx *ctx, const struct mg_step_dwconv2d_bwd_x_s8 *k)
{
    const int8_t *dy = mg_at(ctx, k->dy);
    const int8_t *wt = mg_at(ctx, k->wt);
    const int8_t *wf = mg_at(ctx, k->wf);
    const uint8_t *fold = mg_at(ctx, k->fold);
    struct mg_error error = MG_ERROR_BEGIN(ctx, k);
    size_t at = 0;
    for (int32_t h = 0; h < k->h; h++) {
        const struct mg_sources rows = mg_sources(h + k->pt, k->dh, k->sh, k->r, k->p);
        for (int32_t w = 0; w < k->w; w++) {
            const struct mg_sources cols = mg_sources(w + k->pl, k->dw, k->sw, k->s, k->q);
            for (int32_t o = 0, i = 0; i < k->i; i++) {
                uint32_t acc = 0;
                for (int32_t m = 0; m < k->m; m++, o++) {
                    const struct mg_plane plane = channel(wt, wf, k->ws, k->ot, o, k->r * k->s);
                    acc += gather(k, &plane, dy + o, fold[o], rows, cols);
                }
                mg_error_put(&error, at++, mg_wrap32(acc));
            }
        }
    }
    mg_error_end(&error);
}

// What both updates read.
struct gradient {
    const int8_t *dy, *x;
    int32_t h, w, i, p, q, o, ot, m, r, s;
    int32_t sh, sw, dh, dw, pt, pl, zx;
};

#define GRADIENT(ctx, k)                                                                                              \
    {                                                                                                                 \
        mg_at((ctx), (k)->dy), mg_at((ctx), (k)->x), (k)->h, (k)->w, (k)->i, (k)->p, (k)->q, (k)->o, (k)->ot, (k)->m, \
            (k)->r, (k)->s, (k)->sh, (k)->sw, (k)->dh, (k)->dw, (k)->pt, (k)->pl, (k)->zx                             \
    }

// dw of output o, which reads input i, at tap (r, s).
static int32_t sum_dw(const struct gradient *g, int32_t o, int32_t i, int32_t r, int32_t s)
{
    const int32_t top = r * g->dh - g->pt;
    const int32_t left = s * g->dw - g->pl;
    const struct mg_taps rows = mg_taps(top, g->sh, g->p, g->h);
    const struct mg_taps cols = mg_taps(left, g->sw, g->q, g->w);
    uint32_t acc = 0;
    if (cols.first >= cols.end)
        return 0;
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
    for (int32_t o = 0, i = 0; i < g->i; i++) {
        for (int32_t m = 0; m < g->m && o < g->ot; m++, o++) {
            mg_update_channel(update, o);
            for (int32_t r = 0; r < g->r; r++)
                for (int32_t s = 0; s < g->s; s++)
                    mg_update_put(update, at++, sum_dw(g, o, i, r, s));
        }
    }
}

void mg_dwconv2d_upd_q16(const struct mg_ctx *ctx, const struct mg_step_dwconv2d_upd_q16 *k)
{
    const struct gradient g = GRADIENT(ctx, k);
    struct mg_update update = MG_UPDATE_Q16(ctx, k);
    update_all(&g, &update);
}

void mg_dwconv2d_upd_sr8(const struct mg_ctx *ctx, const struct mg_step_dwconv2d_upd_sr8 *k)
{
    const struct gradient g = GRADIENT(ctx, k);
    struct mg_update update = MG_UPDATE_SR8(ctx, k);
    update_all(&g, &update);
}
