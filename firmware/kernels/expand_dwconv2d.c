// expand_dwconv2d.c -- a 1x1 convolution and the depthwise convolution behind it, without the tensor between them: forward.
// Letters   H W input size, I inputs, P Q output size, O outputs = channels of the tensor e between, R S depthwise kernel.
// x (H,W,I) s8   we (O,I) s8   be (O) s32   wd (O,R,S) s8   bd (O) s32   y (P,Q,O) s8
// e = clamp(ze + Me[o] * (be[o] + sum_i we[o,i] * (x[h,w,i] - zx)), elo, ehi)                              as conv2d_fwd_s8
// y = clamp(zy + Md[o] * (bd[o] + sum_rs wd[o,r,s] * (e[p*sh + r*dh - pt, q*sw + s*dw - pl, o] - ze)), lo, hi)
// scratch (K,4,V) s16: e - ze of four channels. K: the rows that one row of windows covers, used as a ring. V: the columns that
// all its windows cover; 0 where they leave e, so that no window is cut at its sides.
// Rounding: fixed.h. Saved for backward: nothing. y is written four channels after four, from the first row to the last each time:
// it may alias nothing, not x either.
// Sums are int32 and cannot overflow: 2^14 * I < 2^30 (e); row.h for R*S <= 511 (y). What the bias adds wraps.

#include "plane.h"
#include "row.h"

enum { LANES = 4 };

// A channel of e, and the one of y: weights, what is added to every sum, multiplier.
struct pair {
    const int8_t *we, *wd;
    uint32_t e_start, d_start;
    mg_requant e_rq, d_rq;
    int8_t *y;
};

// e - ze of the sums of n pixels.
MG_APART void put_e(const struct mg_ends *ends, uint32_t start, mg_requant rq, const int32_t *sum, int32_t n, int16_t *e)
{
    if (ends->byte && rq.shift < 0)
        for (int32_t j = 0; j < n; j++)
            e[j] = (int16_t)mg_end_byte(mg_wrap32(start + (uint32_t)sum[j]), rq);
    else
        for (int32_t j = 0; j < n; j++)
            e[j] = (int16_t)mg_end_any(ends, mg_wrap32(start + (uint32_t)sum[j]), rq);
}

// n pixels of four channels, whose rows in the ring are `cols` apart.
MG_APART void expand_row(const struct pair c[LANES], const struct mg_ends *ends, const int8_t *x, int32_t inputs, int32_t n,
                         int16_t *e, int32_t cols)
{
    int32_t sum[2][MG_CHUNK];
    for (int32_t v = 0, m; v < n; v += m, x += m * inputs, e += m) {
        m = n - v < MG_CHUNK ? n - v : MG_CHUNK;
        for (int32_t j = 0; j < LANES; j += 2) {
            mg_dot_pair(sum, c[j].we, c[j + 1].we, 1, x, inputs, m);
            for (int32_t b = 0; b < 2; b++)
                put_e(ends, c[j + b].e_start, c[j + b].e_rq, sum[b], m, e + (j + b) * cols);
        }
    }
}

typedef struct mg_step_expand_dwconv2d_fwd_s8 record;

// The ring, and the columns of it that x fills.
struct ring {
    int16_t *e;
    int32_t rows, cols, pitch;
    int32_t left, width;
};

static struct ring ring_of(const record *k, int16_t *scratch)
{
    struct ring ring = {.e = scratch, .rows = (k->r - 1) * k->dh + 1, .cols = (k->q - 1) * k->sw + (k->s - 1) * k->dw + 1};
    ring.pitch = LANES * ring.cols;
    ring.left = k->pl < ring.cols ? k->pl : ring.cols;
    ring.width = ring.cols - ring.left < k->w ? ring.cols - ring.left : k->w;
    return ring;
}

// One row of one channel of y, from the rows of the ring under it.
MG_APART void slide_row(const record *k, const struct mg_ends *ends, const struct pair *c, struct mg_rows rows, int8_t *y)
{
    int32_t sum[MG_CHUNK];
    for (int32_t q = 0, n; q < k->q; q += n, y += n * k->o, rows.e += n * k->sw) {
        n = k->q - q < MG_CHUNK ? k->q - q : MG_CHUNK;
        mg_slide(sum, n, &rows, k->s, k->dw, k->sw);
        mg_put_outputs(ends, c->d_start, c->d_rq, sum, n, y, k->o);
    }
}

MG_APART void put_channels(const record *k, const struct ring *ring, const struct pair c[LANES], const int8_t *x)
{
    const struct mg_ends e = mg_ends_of(k->rounding, k->ze, k->elo, k->ehi), d = mg_ends_of(k->rounding, k->zy, k->lo, k->hi);
    int32_t ready = 0;  // rows of x that are in the ring, or need not be
    for (int32_t p = 0; p < k->p; p++) {
        const int32_t top = p * k->sh - k->pt;
        const int32_t end = top + ring->rows < k->h ? top + ring->rows : k->h;
        for (int32_t h = ready > top ? ready : top; h < end; ready = ++h)
            expand_row(c, &e, x + h * k->w * k->i, k->i, ring->width, ring->e + h % ring->rows * ring->pitch + ring->left, ring->cols);
        const struct mg_taps taps = mg_taps(top, k->dh, k->r, k->h);
        struct mg_rows rows = {.step = k->dh * ring->pitch, .size = ring->rows * ring->pitch, .count = taps.end - taps.first};
        rows.at = rows.count > 0 ? (top + taps.first * k->dh) % ring->rows * ring->pitch : 0;
        for (int32_t j = 0; j < LANES; j++) {
            rows.e = ring->e + j * ring->cols;
            rows.w = c[j].wd + taps.first * k->s;
            slide_row(k, &d, &c[j], rows, c[j].y + p * k->q * k->o);
        }
    }
}

// What zx takes from every sum of a channel of e.
static uint32_t zero(const record *k, const int8_t *w)
{
    int32_t sum = 0;
    for (int32_t i = 0; i < k->i; i++)
        sum += w[i];
    return (uint32_t)(sum * k->zx);
}

// Channel o of both layers.
MG_APART struct pair pair_at(const struct mg_ctx *ctx, const record *k, int32_t o)
{
    const int32_t *be = mg_at(ctx, k->be), *bd = mg_at(ctx, k->bd);
    const mg_requant *rqe = mg_at(ctx, k->rqe), *rqd = mg_at(ctx, k->rqd);
    struct pair c = {.we = mg_at(ctx, k->we), .wd = mg_at(ctx, k->wd), .y = mg_at(ctx, k->y)};
    c.we += o * k->i;
    c.wd += o * k->r * k->s;
    c.y += o;
    c.e_start = (uint32_t)(be[o] >> k->bef) - zero(k, c.we);
    c.d_start = (uint32_t)(bd[o] >> k->bdf);
    c.e_rq = rqe[o];
    c.d_rq = rqd[o];
    return c;
}

void mg_expand_dwconv2d_fwd_s8(const struct mg_ctx *ctx, const record *k)
{
    const struct ring ring = ring_of(k, mg_at(ctx, k->scratch));
    memset(ring.e, 0, sizeof(int16_t) * (size_t)(ring.rows * ring.pitch));
    for (int32_t o = 0; o < k->o; o += LANES) {
        struct pair c[LANES];  // a last group of less has its last channel twice
        for (int32_t j = 0; j < LANES; j++)
            c[j] = pair_at(ctx, k, o + j < k->o ? o + j : k->o - 1);
        put_channels(k, &ring, c, mg_at(ctx, k->x));
    }
}
