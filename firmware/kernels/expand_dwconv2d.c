// expand_dwconv2d.c -- a 1x1 convolution and the depthwise convolution behind it, without the tensor between them: forward.
// Letters   H W input size, I inputs, P Q output size, O outputs = channels of the tensor e between, R S depthwise kernel.
// x (H,W,I) s8   we (O,I) s8   be (O) s32   wd (O,R,S) s8   bd (O) s32   y (P,Q,O) s8
// e = clamp(ze + Me[o] * (be[o] + sum_i we[o,i] * (x[h,w,i] - zx)), elo, ehi)                              as conv2d_fwd_s8
// y = clamp(zy + Md[o] * (bd[o] + sum_rs wd[o,r,s] * (e[p*sh + r*dh - pt, q*sw + s*dw - pl, o] - ze)), lo, hi)
// scratch (K,4,V) s16: e - ze of four channels. K: the rows that one row of windows covers, used as a ring. V: the columns that
// all its windows cover; 0 where they leave e, so that no window is cut at its sides.
// Rounding: fixed.h. Saved for backward: nothing. y is written four channels after four, from the first row to the last each time:
// it may alias nothing, not x either.
// Sums are int32 and cannot overflow: 2^14 * I < 2^30 (e); 2^22 * R*S < 2^31 for R*S <= 511, whatever scratch holds (y). What the
// bias adds wraps.

#include "plane.h"

enum {
    LANES = 4,   // channels at a time, and outputs of a channel at a time
    CHUNK = 16,  // pixels of a row whose sums stand on the stack
};

// How a sum ends: by any multiplier and clamp, or as nearly all layers with a ReLU have it: rounded twice, shifted to the right, and
// clamped to all of 0 … 255 above the zero point.
enum ending { ANY, BYTE };

// A channel of one of the two layers. lo and hi are above the zero point.
struct channel {
    const int8_t *w;
    uint32_t start;  // what is added to every sum
    mg_requant rq;
    int32_t rounding, lo, hi;
    enum ending ending;
};

MG_INLINE int32_t finish(const struct channel *c, int32_t sum, enum ending ending)
{
    const int32_t acc = mg_wrap32(c->start + (uint32_t)sum);
    if (ending == BYTE)
        return mg_clamp(mg_round_down(mg_mul_q31(acc, c->rq.mult), -c->rq.shift), 0, 255);
    return mg_clamp(mg_requantize(acc, c->rq.mult, c->rq.shift, c->rounding), c->lo, c->hi);
}

// The sums of a chunk, of one channel; the copy stays in registers.
MG_APART void put_e(const struct channel *channel, const int32_t *sum, int32_t n, int16_t *e)
{
    const struct channel c = *channel;
    if (c.ending == BYTE)
        for (int32_t j = 0; j < n; j++)
            e[j] = (int16_t)finish(&c, sum[j], BYTE);
    else
        for (int32_t j = 0; j < n; j++)
            e[j] = (int16_t)finish(&c, sum[j], ANY);
}

MG_APART void put_y(const struct channel *channel, const int32_t *sum, int32_t n, int8_t *y, int32_t pitch, int32_t zy)
{
    const struct channel c = *channel;
    if (c.ending == BYTE)
        for (int32_t j = 0; j < n; j++, y += pitch)
            *y = (int8_t)(zy + finish(&c, sum[j], BYTE));
    else
        for (int32_t j = 0; j < n; j++, y += pitch)
            *y = (int8_t)(zy + finish(&c, sum[j], ANY));
}

// Two channels of n pixels, two pixels at a time; the last of an odd number goes with the one before.
MG_APART void expand(int32_t sum[2][CHUNK], const int8_t *w0, const int8_t *w1, const int8_t *x, int32_t inputs, int32_t n)
{
    for (int32_t v = 0; v < n; v += 2) {
        const int32_t at = v + 2 <= n || n == 1 ? v : v - 1;
        const int8_t *x0 = x + at * inputs, *x1 = n == 1 ? x0 : x0 + inputs;
        int32_t a0 = 0, a1 = 0, b0 = 0, b1 = 0;
#pragma GCC unroll 4
        for (int32_t i = 0; i < inputs; i++) {
            a0 += w0[i] * x0[i];
            b0 += w1[i] * x0[i];
            a1 += w0[i] * x1[i];
            b1 += w1[i] * x1[i];
        }
        sum[0][at] = a0;
        sum[0][at + 1] = a1;
        sum[1][at] = b0;
        sum[1][at + 1] = b1;
    }
}

// n pixels of four channels, whose rows in the ring are `cols` apart.
static void expand_row(const struct channel c[LANES], const int8_t *x, int32_t inputs, int32_t n, int16_t *e, int32_t cols)
{
    int32_t sum[2][CHUNK];
    for (int32_t v = 0, m; v < n; v += m, x += m * inputs, e += m) {
        m = n - v < CHUNK ? n - v : CHUNK;
        for (int32_t j = 0; j < LANES; j += 2) {
            expand(sum, c[j].w, c[j + 1].w, x, inputs, m);
            put_e(&c[j], sum[0], m, e + j * cols);
            put_e(&c[j + 1], sum[1], m, e + (j + 1) * cols);
        }
    }
}

// The rows of the ring under a row of windows: `count` from element `at` of e on, `step` apart, back by `size` at the end of the ring.
struct rows {
    const int16_t *e;
    const int8_t *w;
    int32_t at, step, size, count;
};

// n >= 4 windows, sw apart, four at a time; the last of a number that is no multiple go with those before.
MG_INLINE void slide(int32_t *sum, int32_t n, const struct rows *rows, int32_t taps, int32_t sw)
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
static void slide_any(int32_t *sum, int32_t n, const struct rows *rows, int32_t taps, int32_t dw, int32_t sw)
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

// The windows of nearly all nets have constant sizes here, so that a value of e is loaded once for all that read it.
MG_APART void slide_chunk(int32_t *sum, int32_t n, const struct rows *rows, int32_t taps, int32_t dw, int32_t sw)
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

// One row of one channel of y, from n rows of windows.
static void put_row(const record *k, const struct channel *c, struct rows rows, int8_t *y)
{
    int32_t sum[CHUNK];
    for (int32_t q = 0, n; q < k->q; q += n, y += n * k->o, rows.e += n * k->sw) {
        n = k->q - q < CHUNK ? k->q - q : CHUNK;
        slide_chunk(sum, n, &rows, k->s, k->dw, k->sw);
        put_y(c, sum, n, y, k->o, k->zy);
    }
}

// Four channels of both layers: of the last group, which may have less, the last channel is done again.
static void put_channels(const record *k, const struct ring *ring, const struct channel e[LANES], const struct channel d[LANES],
                         const int8_t *x, int8_t *const y[LANES])
{
    const int32_t i = k->i, row = k->q * k->o;
    int32_t ready = 0;  // rows of x that are in the ring, or need not be
    for (int32_t p = 0; p < k->p; p++) {
        const int32_t top = p * k->sh - k->pt;
        const int32_t end = top + ring->rows < k->h ? top + ring->rows : k->h;
        for (int32_t h = ready > top ? ready : top; h < end; ready = ++h)
            expand_row(e, x + h * k->w * i, i, ring->width, ring->e + h % ring->rows * ring->pitch + ring->left, ring->cols);
        const struct mg_taps taps = mg_taps(top, k->dh, k->r, k->h);
        struct rows rows = {.step = k->dh * ring->pitch, .size = ring->rows * ring->pitch, .count = taps.end - taps.first};
        rows.at = rows.count > 0 ? (top + taps.first * k->dh) % ring->rows * ring->pitch : 0;
        for (int32_t j = 0; j < LANES; j++) {
            rows.e = ring->e + j * ring->cols;
            rows.w = d[j].w + taps.first * k->s;
            put_row(k, &d[j], rows, y[j] + p * row);
        }
    }
}

static struct channel channel(const record *k, const int8_t *w, uint32_t start, mg_requant rq, int32_t lo, int32_t hi)
{
    const bool byte = k->rounding == MG_ROUND_TWICE && rq.shift < 0 && lo == 0 && hi == 255;
    return (struct channel){w, start, rq, k->rounding, lo, hi, byte ? BYTE : ANY};
}

// What zx takes from every sum of a channel of e.
static uint32_t zero(const record *k, const int8_t *w)
{
    int32_t sum = 0;
    for (int32_t i = 0; i < k->i; i++)
        sum += w[i];
    return (uint32_t)(sum * k->zx);
}

void mg_expand_dwconv2d_fwd_s8(const struct mg_ctx *ctx, const record *k)
{
    const int8_t *we = mg_at(ctx, k->we), *wd = mg_at(ctx, k->wd);
    const int32_t *be = mg_at(ctx, k->be), *bd = mg_at(ctx, k->bd);
    const mg_requant *rqe = mg_at(ctx, k->rqe), *rqd = mg_at(ctx, k->rqd);
    const struct ring ring = ring_of(k, mg_at(ctx, k->scratch));
    memset(ring.e, 0, sizeof(int16_t) * (size_t)(ring.rows * ring.pitch));
    for (int32_t first = 0; first < k->o; first += LANES) {
        struct channel e[LANES], d[LANES];
        int8_t *y[LANES];
        for (int32_t j = 0; j < LANES; j++) {
            const int32_t o = first + j < k->o ? first + j : k->o - 1;
            const int8_t *w = we + o * k->i;
            e[j] = channel(k, w, (uint32_t)(be[o] >> k->bef) - zero(k, w), rqe[o], k->elo - k->ze, k->ehi - k->ze);
            d[j] = channel(k, wd + o * k->r * k->s, (uint32_t)(bd[o] >> k->bdf), rqd[o], k->lo - k->zy, k->hi - k->zy);
            y[j] = (int8_t *)mg_at(ctx, k->y) + o;
        }
        put_channels(k, &ring, e, d, mg_at(ctx, k->x), y);
    }
}
