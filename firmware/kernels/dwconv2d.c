// dwconv2d.c -- depthwise convolution: forward, input gradient, weight update.
// Letters   H W input size, I inputs, P Q output size, M outputs per input, O = I*M outputs, OT trained outputs, R S kernel.
// x (H,W,I) s8   w (O,R,S) s8 symmetric, outputs < OT in wt, the others in wf   b (O) s32   y, dy (P,Q,O) s8   dx (H,W,I) s8
// y  = clamp(zy + M[o] * (b[o] + sum_rs w[o,r,s] * (x[p*sh + r*dh - pt, q*sw + s*dw - pl, o/M] - zx)))
// dx = round(Mx * sum_ors w[o,r,s] * (dy[p,q,o] * fold[o])), o over the M outputs of the input       SPEC.md 3.5
// dw = sum_pq dy[p,q,o] * (x[...,o/M] - zx), then w -= factor[o] * dw                                SPEC.md 3.6
// Rounding: fixed.h, error.h, update.h. Saved for backward: x. Over each other in the order of SPEC.md 3: y over
// x and dx over dy by rows, dx over skip or x by elements.
// acc wraps at 32 bits: |acc| < 2^31 for every R, S (y) and for P*Q <= 66,000 (dw); for dx the host chooses fold so.

#include "plane.h"
#include "row.h"
#include "update.h"

// Some neighbouring output channels of one plane. Lane j is output o + j and, with M = 1, reads input o + j: then up to four
// go together.
struct lanes {
    const int8_t *w;  // of output o
    int32_t step;     // bytes from weight to weight
    int32_t pitch;    // bytes from output to output
    int32_t input;
    int32_t count;
};

#define LANES(k, wt, wf, o) lanes_at((wt), (wf), (k)->ws, (k)->ot, (k)->o, (k)->r * (k)->s, (k)->m, (o))

static inline struct lanes lanes_at(const int8_t *wt, const int8_t *wf, int32_t ws, int32_t ot, int32_t outputs, int32_t taps,
                                    int32_t m, int32_t o)
{
    struct lanes lanes = {.input = m == 1 ? o : o / m, .count = m == 1 ? MG_LANES(o, o < ot ? ot : outputs) : 1};
    lanes.step = o < ot ? ws : 1;
    lanes.pitch = taps * lanes.step;
    lanes.w = o < ot ? wt + (ws - 1) + o * lanes.pitch : wf + (o - ot) * lanes.pitch;
    return lanes;
}

// Adds one row of n taps to acc: x pitch apart, weights lanes->step apart.
static inline void add_taps(uint32_t acc[4], const struct lanes *lanes, const int8_t *w, const int8_t *x, int32_t pitch, int32_t zx,
                            int32_t n)
{
    const int32_t step = lanes->step;
    if (lanes->count == 1) {
        for (int32_t s = 0; s < n; s++, w += step)
            acc[0] += (uint32_t)(*w * (x[s * pitch] - zx));
        return;
    }
    const int8_t *w1 = w + lanes->pitch, *w2 = w1 + lanes->pitch, *w3 = w2 + lanes->pitch;
    uint32_t a0 = acc[0], a1 = acc[1], a2 = acc[2], a3 = acc[3];
    for (int32_t s = 0; s < n; s++) {
        const int8_t *v = x + s * pitch;
        a0 += (uint32_t)(w[s * step] * (v[0] - zx));
        a1 += (uint32_t)(w1[s * step] * (v[1] - zx));
        a2 += (uint32_t)(w2[s * step] * (v[2] - zx));
        a3 += (uint32_t)(w3[s * step] * (v[3] - zx));
    }
    acc[0] = a0;
    acc[1] = a1;
    acc[2] = a2;
    acc[3] = a3;
}

enum {
    STRIP = 112,  // elements of one channel that stand on the stack: 16 windows of 5x5, 8 of 7x7, 4 of 7x7 two apart
    LONG = 6,     // a row of so many outputs is worth laying out
};

typedef struct mg_step_dwconv2d_fwd_s8 forward;

// The columns that n windows in a row cover.
static inline int32_t covered(const forward *k, int32_t n)
{
    return (n - 1) * k->sw + (k->s - 1) * k->dw + 1;
}

// How many windows of a row to take at once: 0 where not even one fits on the stack.
static int32_t windows_at_once(const forward *k)
{
    int32_t n = MG_CHUNK;
    while (n > 0 && k->r * covered(k, n) > STRIP)
        n -= n > 4 ? 4 : 1;
    return n;
}

// What `rows` rows of one channel hold under windows that cover `cols` columns from `left` on: x - zx, and 0 in the padding.
// x: column 0 of the first of these rows.
static void copy_rows(int16_t *to, const forward *k, const int8_t *x, int32_t rows, int32_t left, int32_t cols)
{
    const int32_t first = left < 0 ? mg_clamp(-left, 0, cols) : 0;
    const int32_t end = mg_clamp(k->w - left, first, cols);
    const int32_t zx = k->zx, pitch = k->i, row_pitch = k->dh * k->w * pitch;
    x += (left + first) * pitch;
    for (; rows > 0; rows--, to += cols, x += row_pitch) {
        const int8_t *v = x;
        int32_t c = 0;
        while (c < first)
            to[c++] = 0;
        for (; c < end; c++, v += pitch)
            to[c] = (int16_t)(*v - zx);
        while (c < cols)
            to[c++] = 0;
    }
}

// Sums of n windows, from column `left` of some rows of a channel on.
MG_APART void sum_windows(int32_t *sum, int32_t n, const forward *k, const int8_t *w, const int8_t *x, int32_t rows, int32_t left)
{
    int16_t strip[STRIP];
    const int32_t cols = covered(k, n);
    copy_rows(strip, k, x, rows, left, cols);
    mg_slide(sum, n, &(struct mg_rows){.e = strip, .w = w, .step = cols, .size = STRIP + 1, .count = rows}, k->s, k->dw, k->sw);
}

// One row of y, channel by channel, the weights being contiguous. top: the row of x under the first tap, inside or not.
MG_APART void put_row(const struct mg_ctx *ctx, const forward *k, struct mg_taps rows, int32_t top, int8_t *y, int32_t at_once)
{
    const int8_t *x = mg_at(ctx, k->x), *wt = mg_at(ctx, k->wt), *wf = mg_at(ctx, k->wf);
    const int32_t *b = mg_at(ctx, k->b);
    const mg_requant *rq = mg_at(ctx, k->rq);
    const struct mg_ends ends = mg_ends_of(k->rounding, k->zy, k->lo, k->hi);
    const int32_t taps = k->r * k->s;
    x += rows.end > rows.first ? (top + rows.first * k->dh) * k->w * k->i : 0;
    for (int32_t o = 0; o < k->o; o++) {
        const int8_t *w = (o < k->ot ? wt + o * taps : wf + (o - k->ot) * taps) + rows.first * k->s;
        for (int32_t q = 0, n; q < k->q; q += n) {
            int32_t sum[MG_CHUNK];
            n = k->q - q < at_once ? k->q - q : at_once;
            sum_windows(sum, n, k, w, x + (k->m == 1 ? o : o / k->m), rows.end - rows.first, q * k->sw - k->pl);
            mg_put_outputs(&ends, (uint32_t)(b[o] >> k->bf), rq[o], sum, n, y + q * k->o + o, k->o);
        }
    }
}

// One row of y, pixel by pixel and up to four channels at a time: for windows and weights of any kind, and faster where a row is
// short.
MG_APART void put_pixels(const struct mg_ctx *ctx, const forward *k, const struct mg_taps rows, int32_t top, int8_t *y)
{
    const int8_t *x = mg_at(ctx, k->x), *wt = mg_at(ctx, k->wt), *wf = mg_at(ctx, k->wf);
    const int32_t *b = mg_at(ctx, k->b);
    const struct mg_output to = MG_OUTPUT(ctx, k);
    for (int32_t q = 0; q < k->q; q++) {
        const int32_t left = q * k->sw - k->pl;
        const struct mg_taps cols = mg_taps(left, k->dw, k->s, k->w);
        const int32_t n = cols.end - cols.first;
        struct lanes lanes;
        for (int32_t o = 0; o < k->o; o += lanes.count) {
            uint32_t acc[4] = {0};
            lanes = LANES(k, wt, wf, o);
            for (int32_t r = rows.first; n > 0 && r < rows.end; r++) {
                const int8_t *w = lanes.w + (r * k->s + cols.first) * lanes.step;
                const int8_t *v = x + ((top + r * k->dh) * k->w + left + cols.first * k->dw) * k->i + lanes.input;
                add_taps(acc, &lanes, w, v, k->dw * k->i, k->zx, n);
            }
            for (int32_t j = 0; j < lanes.count; j++)
                *y++ = mg_output_of(&to, o + j, mg_add32(mg_wrap32(acc[j]), b[o + j] >> k->bf));
        }
    }
}

void mg_dwconv2d_fwd_s8(const struct mg_ctx *ctx, const forward *k)
{
    const bool contiguous = k->ot == 0 || k->ws == 1;
    const int32_t at_once = contiguous && k->q >= LONG ? windows_at_once(k) : 0;
    int8_t *y = mg_at(ctx, k->y);
    for (int32_t p = 0; p < k->p; p++, y += k->q * k->o) {
        const int32_t top = p * k->sh - k->pt;
        const struct mg_taps rows = mg_taps(top, k->dh, k->r, k->h);
        if (at_once > 0)
            put_row(ctx, k, rows, top, y, at_once);
        else
            put_pixels(ctx, k, rows, top, y);
    }
}

// The outputs that read one input position.
struct readers {
    struct mg_sources rows, cols;
};

// Adds what outputs o ... send to their inputs (M = 1) or their input. fold is common to all taps of an output: it is taken last,
// which is the same sum modulo 2^32.
MG_APART void add_errors(uint32_t acc[4], const struct mg_step_dwconv2d_bwd_x_s8 *k, const struct lanes *lanes, const int8_t *dy,
                         const uint8_t *fold, const struct readers *from)
{
    const struct mg_sources rows = from->rows, cols = from->cols;
    const int32_t pitch = lanes->pitch, w_step = cols.tap_pitch * lanes->step, e_step = cols.out_pitch * k->o;
    uint32_t a0 = 0, a1 = 0, a2 = 0, a3 = 0;
    for (int32_t a = 0; a < rows.count; a++) {
        const int32_t r = rows.tap + a * rows.tap_pitch, p = rows.out + a * rows.out_pitch;
        const int8_t *w = lanes->w + (r * k->s + cols.tap) * lanes->step;
        const int8_t *e = dy + (p * k->q + cols.out) * k->o;
        if (lanes->count == 1)
            for (int32_t b = cols.count; b > 0; b--, w += w_step, e += e_step)
                a0 += (uint32_t)(*w * *e);
        else
            for (int32_t b = cols.count; b > 0; b--, w += w_step, e += e_step) {
                a0 += (uint32_t)(w[0] * e[0]);
                a1 += (uint32_t)(w[pitch] * e[1]);
                a2 += (uint32_t)(w[2 * pitch] * e[2]);
                a3 += (uint32_t)(w[3 * pitch] * e[3]);
            }
    }
    acc[0] += a0 * fold[0];
    if (lanes->count == 1)
        return;
    acc[1] += a1 * fold[1];
    acc[2] += a2 * fold[2];
    acc[3] += a3 * fold[3];
}

void mg_dwconv2d_bwd_x_s8(const struct mg_ctx *ctx, const struct mg_step_dwconv2d_bwd_x_s8 *k)
{
    const int8_t *dy = mg_at(ctx, k->dy);
    const int8_t *wt = mg_at(ctx, k->wt);
    const int8_t *wf = mg_at(ctx, k->wf);
    const uint8_t *fold = mg_at(ctx, k->fold);
    struct mg_error error = MG_ERROR_BEGIN(ctx, k, MG_BITS(ctx, k));
    struct readers from;
    size_t at = 0;
    for (int32_t h = 0; h < k->h; h++) {
        from.rows = mg_sources(h + k->pt, k->dh, k->sh, k->r, k->p);
        for (int32_t w = 0; w < k->w; w++) {
            from.cols = mg_sources(w + k->pl, k->dw, k->sw, k->s, k->q);
            struct lanes lanes;
            for (int32_t i = 0; i < k->i; i += lanes.count) {
                uint32_t acc[4] = {0};
                lanes.count = 1;  // of the inputs; M = 0 gives them no output at all
                for (int32_t m = 0; m < k->m; m++) {
                    const int32_t o = i * k->m + m;
                    lanes = LANES(k, wt, wf, o);
                    add_errors(acc, k, &lanes, dy + o, fold + o, &from);
                }
                for (int32_t j = 0; j < lanes.count; j++)
                    mg_error_put(&error, at++, mg_wrap32(acc[j]));
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
