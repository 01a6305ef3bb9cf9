// error.c -- rounding of error tensors and their self-adaptive exponents (after Mandheling, arXiv 2206.07509).
// acc is int32 and wraps; the skip error joins it before rounding, saturated at 2^29.

#include "error.h"

enum {
    PEAK_HIGH = 127,    // above: the tensor saturated, its exponent goes up at once
    PEAK_LOW = 64,      // below, DOWN_AFTER times in a row: the exponent goes down
    DOWN_AFTER = 16,
    SKIP_LIMIT = 1 << 29,
};

struct mg_error mg_error_begin(struct mg_error error, int32_t r_in, int32_t r_skip)
{
    error.r = mg_exponent_clamp(error.rx->next);
    error.rx->r = (int8_t)error.r;
    error.n += error.r - r_in;
    error.skip_n += r_in - r_skip;
    error.peak = 0;
    return error;
}

static bool passes(const struct mg_error *error, size_t at)
{
    if (error->bits != NULL)
        return error->bits[at / 8] >> at % 8 & 1;
    return error->x == NULL || (error->lo < error->x[at] && error->x[at] < error->hi);
}

void mg_error_put(struct mg_error *error, size_t at, int32_t acc)
{
    if (error->skip != NULL) {
        const int32_t skip = mg_scale(error->skip[at], error->skip_mult, error->skip_n);
        acc = mg_add32(acc, mg_clamp(skip, -SKIP_LIMIT, SKIP_LIMIT));
    }
    if (!passes(error, at)) {
        error->dx[at] = 0;
        return;
    }
    const int32_t e = mg_scale(acc, error->mult, error->n);
    const uint32_t size = e < 0 ? 0u - (uint32_t)e : (uint32_t)e;
    error->peak = size > error->peak ? size : error->peak;
    error->dx[at] = (int8_t)mg_clamp(e, -127, 127);
}

void mg_error_end(const struct mg_error *error)
{
    mg_exponent *rx = error->rx;
    int32_t next = error->r;
    int32_t count = error->peak < PEAK_LOW ? rx->count + 1 : 0;
    if (error->peak > PEAK_HIGH)
        next = mg_exponent_clamp(error->r + 1);
    if (count == DOWN_AFTER) {
        next = mg_exponent_clamp(error->r - 1);
        count = 0;
    }
    *rx = (mg_exponent){.r = (int8_t)error->r, .next = (int8_t)next, .count = (uint8_t)count};
}
