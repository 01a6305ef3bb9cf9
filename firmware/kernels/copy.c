// copy.c -- moves a block of up to four axes: concatenation, slices, padding, transposition, and their errors.
// Letters   D0 D1 D2 D3 sizes of the block.   x (XN) s8   y (YN) s8, filled first where has_fill
// y[yo + i*y0 + j*y1 + k*y2 + l*y3] = x[xo + i*x0 + j*x1 + k*x2 + l*x3]
// Nothing is rounded or saved. y may not overlap x. Offsets are below 2^30 where they are read; beyond, they wrap unused.

#include <string.h>

#include "plan.h"

static void copy_plane(const struct mg_step_copy_s8 *s, const int8_t *x, int8_t *y, uint32_t from, uint32_t to)
{
    for (uint32_t k = 0; k < s->d2; k++, from += s->x2, to += s->y2) {
        uint32_t in = from, out = to;
        for (uint32_t l = 0; l < s->d3; l++, in += s->x3, out += s->y3)
            y[out] = x[in];
    }
}

void mg_copy_s8(const struct mg_ctx *ctx, const struct mg_step_copy_s8 *s)
{
    const int8_t *x = mg_at(ctx, s->x);
    int8_t *y = mg_at(ctx, s->y);
    if (s->has_fill)
        memset(y, s->fill, s->yn);
    for (uint32_t i = 0; i < s->d0; i++)
        for (uint32_t j = 0; j < s->d1; j++)
            copy_plane(s, x, y, s->xo + i * s->x0 + j * s->x1, s->yo + i * s->y0 + j * s->y1);
}
