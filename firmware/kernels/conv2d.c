// conv2d.c -- convolution: forward, input gradient, weight update.
// Letters   H W input size, G groups, I inputs of a group, P Q output size, O outputs, R S kernel, IT trained inputs.   Row-major.
// x (H,W,G*I) s8   w (O,R,S,I) s8 symmetric, in two planes   b (O) s32   y, dy (P,Q,O) s8   dx (H,W,G*I) s8
// Below for one group. Output o belongs to group o / (O/G), and sees only the inputs of that group.
// y  = clamp(zy + M[o] * (b[o] + sum_rsi w[o,r,s,i] * (x[p*sh + r*dh - pt, q*sw + s*dw - pl, i] - zx)))   Jacob 2018, eq. 7
// dx = round(Mx * sum_ors w[o,r,s,i] * (dy[p,q,o] * fold[o])), over the p, q that read this x              SPEC.md 3.5
// dw = sum_pq dy[p,q,o] * x[...,i] - zx * sum_pq dy[p,q,o], then w -= factor[o] * dw                                        SPEC.md 3.6
// Rounding: fixed.h, error.h, update.h. Saved for backward: x. Over each other in the order of SPEC.md 3: y over
// x and dx over dy by rows, dx over skip or x by elements.
// acc wraps at 32 bits: |acc| < 2^31 for R*S*I <= 66,000 (y) and P*Q <= 66,000 (dw); for dx the host chooses fold so.
// Where a size is 0, the others may be anything: addresses that are then never read wrap, unsigned.

#include "plane.h"
#include "row.h"
#include "update.h"

// Bytes from pixel to pixel of x.
#define PITCH(k) ((int32_t)((uint32_t)(k)->i * (k)->g))

// Where the outputs of one pixel look: the first tap inside x, its address (of one group), and how many taps follow.
struct window {
    const int8_t *x;
    int32_t r, s;
    int32_t rows, cols;
};

// One plane's part of `lanes` outputs from o on. With dw = 1 and all channels in this plane, the taps of a row are one run.
static void add_window(uint32_t acc[4], int32_t lanes, const struct mg_step_conv2d_fwd_s8 *k, const struct mg_plane *plane,
                       int32_t o, const struct window *at)
{
    const int32_t n = plane->channels;
    const int32_t pitch = PITCH(k);
    const bool joined = k->dw == 1 && n == pitch;
    const int32_t runs = joined ? 1 : at->cols;
    const int32_t length = joined ? at->cols * n : n;
    const int32_t run_pitch = n * plane->step;
    const int32_t row_pitch = k->s * run_pitch;
    const int32_t output_pitch = k->r * row_pitch;
    const int8_t *w = plane->w + o * output_pitch + at->r * row_pitch + at->s * run_pitch;
    const int8_t *x = at->x + plane->first;
    for (int32_t r = 0; r < at->rows; r++)
        for (int32_t run = 0; run < runs; run++)
            mg_dot_rows(acc, lanes, w + r * row_pitch + run * run_pitch, output_pitch, plane->step,
                        x + (r * k->dh * k->w + run * k->dw) * pitch, k->zx, length);
}

static struct window window_at(const struct mg_step_conv2d_fwd_s8 *k, const int8_t *x, int32_t p, int32_t q)
{
    const int32_t top = p * k->sh - k->pt;
    const int32_t left = q * k->sw - k->pl;
    const struct mg_taps rows = mg_taps(top, k->dh, k->r, k->h);
    const struct mg_taps cols = mg_taps(left, k->dw, k->s, k->w);
    if (rows.first == rows.end || cols.first == cols.end)
        return (struct window){x, 0, 0, 0, 0};
    const uint32_t pixel = (uint32_t)(top + rows.first * k->dh) * k->w + (uint32_t)(left + cols.first * k->dw);
    return (struct window){x + pixel * (uint32_t)PITCH(k), rows.first, cols.first, rows.end - rows.first, cols.end - cols.first};
}

static void any_forward(const struct mg_ctx *ctx, const struct mg_step_conv2d_fwd_s8 *k)
{
    const int8_t *x = mg_at(ctx, k->x);
    const int32_t *b = mg_at(ctx, k->b);
    int8_t *y = mg_at(ctx, k->y);
    const struct mg_plane trained = mg_plane_trained(mg_at(ctx, k->wt), k->ws, k->it);
    const struct mg_plane frozen = mg_plane_frozen(mg_at(ctx, k->wf), k->it, k->i);
    const struct mg_output to = MG_OUTPUT(ctx, k);
    const int32_t outputs = k->o, per_group = k->o / k->g, bf = k->bf;
    for (int32_t p = 0; p < k->p; p++) {
        for (int32_t q = 0; q < k->q; q++) {
            struct window at = window_at(k, x, p, q);
            for (int32_t o = 0, end = per_group, lanes; o < outputs; o += lanes) {
                uint32_t acc[4] = {0};
                if (o == end) {
                    end += per_group;
                    at.x += k->i;
                }
                lanes = MG_LANES(o, end);
                if (trained.channels != 0)
                    add_window(acc, lanes, k, &trained, o, &at);
                if (frozen.channels != 0)
                    add_window(acc, lanes, k, &frozen, o, &at);
                for (int32_t j = 0; j < lanes; j++)
                    *y++ = mg_output_of(&to, o + j, mg_add32(mg_wrap32(acc[j]), b[o + j] >> bf));
            }
        }
    }
}

// What zx takes from every sum of n weights.
static uint32_t zero_of(const int8_t *w, int32_t step, int32_t n, int32_t zx)
{
    int32_t sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += w[i * step];
    return (uint32_t)(sum * zx);
}

// 1x1 over a whole map with all weights in one plane: two outputs of some pixels of a row at a time.
static void point_forward(const struct mg_ctx *ctx, const struct mg_step_conv2d_fwd_s8 *k)
{
    const int32_t *b = mg_at(ctx, k->b);
    const mg_requant *rq = mg_at(ctx, k->rq);
    const struct mg_ends ends = mg_ends_of(k->rounding, k->zy, k->lo, k->hi);
    const int32_t step = k->it != 0 ? k->ws : 1, row = k->i * step;
    const int8_t *w = k->it != 0 ? (const int8_t *)mg_at(ctx, k->wt) + (step - 1) : mg_at(ctx, k->wf);
    for (int32_t p = 0; p < k->p; p++) {
        for (int32_t q = 0, n; q < k->q; q += n) {
            const int8_t *x = (const int8_t *)mg_at(ctx, k->x) + (p * k->w + q) * k->i;
            int8_t *y = (int8_t *)mg_at(ctx, k->y) + (p * k->q + q) * k->o;
            n = k->q - q < MG_CHUNK ? k->q - q : MG_CHUNK;
            for (int32_t o = 0; o < k->o; o += 2) {
                int32_t sum[2][MG_CHUNK];
                const int32_t end = o + 2 < k->o ? o + 2 : k->o;
                mg_dot_pair(sum, w + o * row, w + (end - 1) * row, step, x, k->i, n);
                for (int32_t c = o; c < end; c++) {
                    const uint32_t start = (uint32_t)(b[c] >> k->bf) - zero_of(w + c * row, step, k->i, k->zx);
                    mg_put_outputs(&ends, start, rq[c], sum[c - o], n, y + c, k->o);
                }
            }
        }
    }
}

// A row of so many outputs is worth the sums of the weights.
enum { LONG = 6 };

void mg_conv2d_fwd_s8(const struct mg_ctx *ctx, const struct mg_step_conv2d_fwd_s8 *k)
{
    const bool point = k->r == 1 && k->s == 1 && k->sh == 1 && k->sw == 1 && k->g == 1 && k->pt == 0 && k->pl == 0;
    if (point && k->p <= k->h && k->q <= k->w && k->q >= LONG && (k->it == 0 || k->it == k->i))
        point_forward(ctx, k);
    else
        any_forward(ctx, k);
}

// The outputs that read one input position.
struct readers {
    struct mg_sources rows, cols;
};

// dx of the channels of one plane at one position, from the outputs first ... of one group; `at` is the element of the plane's
// first channel.
static void put_plane(struct mg_error *error, size_t at, const struct mg_step_conv2d_bwd_x_s8 *k, const struct mg_plane *plane,
                      int32_t first, const int8_t *dy, const uint8_t *fold, const struct readers *from)
{
    const int32_t n = plane->channels;
    const int32_t output_pitch = mg_wrap32((uint32_t)k->r * k->s * (uint32_t)(n * plane->step));
    const int32_t outputs = k->o / k->g;
    for (int32_t c = 0, lanes; c < n; c += lanes) {
        uint32_t acc[4] = {0};
        lanes = MG_LANES(c, n);
        for (int32_t a = 0; a < from->rows.count; a++) {
            const int32_t r = from->rows.tap + a * from->rows.tap_pitch;
            const int32_t p = from->rows.out + a * from->rows.out_pitch;
            for (int32_t b = 0; b < from->cols.count; b++) {
                const int32_t s = from->cols.tap + b * from->cols.tap_pitch;
                const int32_t q = from->cols.out + b * from->cols.out_pitch;
                const int8_t *w = plane->w + first * output_pitch + ((r * k->s + s) * n + c) * plane->step;
                mg_fold_columns(acc, lanes, w, output_pitch, plane->step, dy + (p * k->q + q) * k->o + first, fold + first, outputs);
            }
        }
        for (int32_t j = 0; j < lanes; j++)
            mg_error_put(error, at++, mg_wrap32(acc[j]));
    }
}

void mg_conv2d_bwd_x_s8(const struct mg_ctx *ctx, const struct mg_step_conv2d_bwd_x_s8 *k)
{
    const int8_t *dy = mg_at(ctx, k->dy);
    const uint8_t *fold = mg_at(ctx, k->fold);
    const struct mg_plane trained = mg_plane_trained(mg_at(ctx, k->wt), k->ws, k->it);
    const struct mg_plane frozen = mg_plane_frozen(mg_at(ctx, k->wf), k->it, k->i);
    struct mg_error error = MG_ERROR_BEGIN(ctx, k, MG_BITS(ctx, k));
    struct readers from;
    size_t at = 0;
    const int32_t outs = k->o != 0 ? k->p : 0;  // without output channels nobody reads x
    for (int32_t h = 0; h < k->h; h++) {
        from.rows = mg_sources(h + k->pt, k->dh, k->sh, k->r, outs);
        for (int32_t w = 0; w < k->w; w++) {
            from.cols = mg_sources(w + k->pl, k->dw, k->sw, k->s, k->q);
            for (int32_t g = 0, first = 0; g < k->g; g++, first += k->o / k->g, at += k->i) {
                put_plane(&error, at, k, &trained, first, dy, fold, &from);
                put_plane(&error, at + k->it, k, &frozen, first, dy, fold, &from);
            }
        }
    }
    mg_error_end(&error);
}

// What both updates read.
struct gradient {
    const int8_t *dy, *x;
    int32_t h, w, pitch, i, it, p, q, o, per_group, r, s;
    int32_t sh, sw, dh, dw, pt, pl, zx;
};

#define GRADIENT(ctx, k)                                                                                              \
    {                                                                                                                 \
        mg_at((ctx), (k)->dy), mg_at((ctx), (k)->x), (k)->h, (k)->w, PITCH(k), (k)->i, (k)->it, (k)->p, (k)->q,       \
            (k)->o, (k)->o / (k)->g, (k)->r, (k)->s, (k)->sh, (k)->sw, (k)->dh, (k)->dw, (k)->pt, (k)->pl, (k)->zx    \
    }

// One tap reads x from (top, left) on; rows and cols: the p and q where that is inside x.
struct tap {
    int32_t top, left;
    struct mg_taps rows, cols;
};

// acc[j] = sum over p, q of dy[p,q,o] * x[..., i + j] with i counted over all groups, and the sum of dy, for the caller to take zx
// from it.
static uint32_t sum_tap(uint32_t acc[4], int32_t lanes, const struct gradient *g, const struct tap *t, int32_t o, int32_t i)
{
    const int32_t n = t->cols.end - t->cols.first;
    const int32_t pitch = mg_wrap32((uint32_t)g->sw * (uint32_t)g->pitch);  // beyond 2^31 only where n = 1
    uint32_t a0 = 0, a1 = 0, a2 = 0, a3 = 0, sum = 0;
    for (int32_t p = t->rows.first; n > 0 && p < t->rows.end; p++) {
        const int8_t *dy = g->dy + (p * g->q + t->cols.first) * g->o + o;
        const int8_t *x = g->x + ((t->top + p * g->sh) * g->w + t->left + t->cols.first * g->sw) * g->pitch + i;
        for (int32_t q = 0; q < n; q++) {
            const int32_t e = dy[q * g->o];
            const int8_t *v = x + q * pitch;
            sum += (uint32_t)e;
            a0 += (uint32_t)(e * v[0]);
            if (lanes != 4)
                continue;
            a1 += (uint32_t)(e * v[1]);
            a2 += (uint32_t)(e * v[2]);
            a3 += (uint32_t)(e * v[3]);
        }
    }
    acc[0] = a0;
    acc[1] = a1;
    acc[2] = a2;
    acc[3] = a3;
    return sum;
}

static void update_tap(struct mg_update *update, size_t at, const struct gradient *g, const struct tap *t, int32_t o)
{
    const int32_t first = o / g->per_group * g->i;
    for (int32_t i = 0, lanes; i < g->it; i += lanes) {
        uint32_t acc[4];
        lanes = MG_LANES(i, g->it);
        const uint32_t zero = sum_tap(acc, lanes, g, t, o, first + i) * (uint32_t)g->zx;
        for (int32_t j = 0; j < lanes; j++)
            mg_update_put(update, at++, mg_wrap32(acc[j] - zero));
    }
}

static void update_all(struct mg_update *update, const struct gradient *g)
{
    struct tap t;
    size_t at = 0;
    for (int32_t o = 0; o < g->o; o++) {
        mg_update_channel(update, o);
        for (int32_t r = 0; r < g->r; r++) {
            t.top = r * g->dh - g->pt;
            t.rows = mg_taps(t.top, g->sh, g->p, g->h);
            for (int32_t s = 0; s < g->s; s++, at += (size_t)g->it) {
                t.left = s * g->dw - g->pl;
                t.cols = mg_taps(t.left, g->sw, g->q, g->w);
                update_tap(update, at, g, &t, o);
            }
        }
    }
}

void mg_conv2d_upd_q16(const struct mg_ctx *ctx, const struct mg_step_conv2d_upd_q16 *k)
{
    const struct gradient g = GRADIENT(ctx, k);
    struct mg_update update = MG_UPDATE_Q16(ctx, k);
    update_all(&update, &g);
}

void mg_conv2d_upd_sr8(const struct mg_ctx *ctx, const struct mg_step_conv2d_upd_sr8 *k)
{
    const struct gradient g = GRADIENT(ctx, k);
    struct mg_update update = MG_UPDATE_SR8(ctx, k);
    update_all(&update, &g);
}
