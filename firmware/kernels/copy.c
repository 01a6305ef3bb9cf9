// copy.c -- moves a block of up to four axes: concatenation, slices, padding, transposition, and their errors.
// Letters   D0 D1 D2 D3 sizes of the block.   x (XN) s8   y (YN) s8, filled first where has_fill
// y[yo + i*y0 + j*y1 + k*y2 + l*y3] = x[xo + i*x0 + j*x1 + k*x2 + l*x3]
// Nothing is rounded or saved. Offsets are below 2^30 where they are read; beyond, they wrap unused.
// The elements are moved in the order of the block, each read before it is written (SPEC.md 3). So y may lie over x where nothing is
// filled, the places of the block ascend on both sides and no element of y lies above its element of x: a run may move down.

#include <string.h>

#include "plan.h"

// n neighbours, upwards: y may lie below x and overlap it. memmove of a small C library goes byte by byte.
static void move_run(int8_t *y, const int8_t *x, uint32_t n)
{
    for (; n >= 4; n -= 4, x += 4, y += 4) {
        uint32_t word;
        memcpy(&word, x, 4);
        memcpy(y, &word, 4);
    }
    for (; n > 0; n--)
        *y++ = *x++;
}

static void copy_row(const struct mg_step_copy_s8 *s, const int8_t *x, int8_t *y, uint32_t from, uint32_t to)
{
    for (uint32_t l = 0; l < s->d3; l++, from += s->x3, to += s->y3)
        y[to] = x[from];
}

static void copy_plane(const struct mg_step_copy_s8 *s, const int8_t *x, int8_t *y, uint32_t from, uint32_t to)
{
    const bool dense = s->x3 == 1 && s->y3 == 1;
    for (uint32_t k = 0; k < s->d2; k++, from += s->x2, to += s->y2) {
        if (dense)
            move_run(y + to, x + from, s->d3);
        else
            copy_row(s, x, y, from, to);
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
