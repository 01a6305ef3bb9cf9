// resize.c -- nearest neighbour: the host says which row and column of x each one of y reads. Forward, input gradient.
// Letters   H W input size, P Q output size, C channels.   Row-major.   x, dx (H,W,C) s8   y, dy (P,Q,C) s8   rows (P), cols (Q) u16
// y  = x[min(rows[p], H-1), min(cols[q], W-1), c]
// dx = round(Mx * 2^12 * sum of dy over the p, q that read this x)                      SPEC.md 3.5
// Rounding: error.h. Nothing is saved for backward. Over each other in the order of SPEC.md 3: y over x and dx over
// dy by rows, dx over skip or x by elements.
// The sum wraps at 32 bits: below 2^31 for fewer than 4,096 readers of one pixel.

#include "error.h"

static inline uint32_t source(const uint16_t *map, uint32_t at, uint32_t size)
{
    return map[at] < size ? map[at] : size - 1;
}

void mg_resize_fwd_s8(const struct mg_ctx *ctx, const struct mg_step_resize_fwd_s8 *k)
{
    const int8_t *x = mg_at(ctx, k->x);
    const uint16_t *rows = mg_at(ctx, k->rows);
    const uint16_t *cols = mg_at(ctx, k->cols);
    int8_t *y = mg_at(ctx, k->y);
    for (uint32_t p = 0; p < k->p; p++) {
        const int8_t *row = x + source(rows, p, k->h) * k->w * k->c;
        for (uint32_t q = 0; q < k->q; q++) {
            const int8_t *pixel = row + source(cols, q, k->w) * k->c;
            for (uint32_t c = 0; c < k->c; c++)
                *y++ = pixel[c];
        }
    }
}

// The outputs from the first to the last that read one row or column; not all of them need to.
struct readers {
    uint32_t first, end;
};

static struct readers readers_of(const uint16_t *map, uint32_t outs, uint32_t size, uint32_t at)
{
    struct readers found = {0, 0};
    for (uint32_t out = 0; out < outs; out++) {
        if (source(map, out, size) != at)
            continue;
        found.first = found.end == 0 ? out : found.first;
        found.end = out + 1;
    }
    return found;
}

void mg_resize_bwd_x_s8(const struct mg_ctx *ctx, const struct mg_step_resize_bwd_x_s8 *k)
{
    const int8_t *dy = mg_at(ctx, k->dy);
    const uint16_t *rows = mg_at(ctx, k->rows);
    const uint16_t *cols = mg_at(ctx, k->cols);
    struct mg_error error = MG_ERROR_BEGIN(ctx, k, MG_BITS(ctx, k));
    size_t at = 0;
    for (uint32_t h = 0; h < k->h; h++) {
        const struct readers down = readers_of(rows, k->p, k->h, h);
        for (uint32_t w = 0; w < k->w; w++) {
            const struct readers across = readers_of(cols, k->q, k->w, w);
            for (uint32_t c = 0; c < k->c; c++) {
                int32_t acc = 0;
                for (uint32_t p = down.first; p < down.end; p++)
                    for (uint32_t q = across.first; q < across.end; q++)
                        if (source(rows, p, k->h) == h && source(cols, q, k->w) == w)
                            acc = mg_add32(acc, dy[(p * k->q + q) * k->c + c]);
                mg_error_put(&error, at++, mg_wrap32((uint32_t)acc << 12));
            }
        }
    }
    mg_error_end(&error);
}
