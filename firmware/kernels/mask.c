// mask.c -- what a clamp lets pass, one bit an element: saved for backward in an eighth of the bytes of its tensor.
// Letters   N elements.   x (N) s8   bits ((N+7)/8) u8: bit k % 8 of byte k / 8, the spare bits of the last byte 0
// bit = lo < x < hi
// Nothing is rounded. bits may lie over nothing.

#include "plan.h"

void mg_mask_s8(const struct mg_ctx *ctx, const struct mg_step_mask_s8 *k)
{
    const int8_t *x = mg_at(ctx, k->x);
    uint8_t *bits = mg_at(ctx, k->bits);
    for (uint32_t first = 0; first < k->n; first += 8, x += 8) {
        const uint32_t count = k->n - first < 8 ? k->n - first : 8;
        uint32_t byte = 0;
        for (uint32_t j = 0; j < count; j++)
            byte |= (uint32_t)(k->lo < x[j] && x[j] < k->hi) << j;
        *bits++ = (uint8_t)byte;
    }
}
