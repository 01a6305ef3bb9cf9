// linear.c -- fully connected layer: forward to int8 or int32, input gradient, weight update.
// Letters   N batch, I inputs, O outputs, IT trained inputs.   Row-major.
// x (N,I) s8   w (O,I) s8 symmetric, in two planes   b (O) s32   y (N,O) s8 or s32   dy (N,O) s8   dx (N,I) s8
// y  = clamp(zy + M[o] * (b[o] + sum_i w[o,i] * (x[n,i] - zx)))          Jacob 2018, eq. 7; s32: what stands after M[o] *
// dx = round(Mx * sum_o w[o,i] * (dy[n,o] * fold[o]))                    SPEC.md 3.5
// dw = sum_n dy[n,o] * (x[n,i] - zx), then w -= factor[o] * dw           SPEC.md 3.6
// Rounding: fixed.h, error.h, update.h. Saved for backward: x. Over each other in the order of SPEC.md 3: y over
// x and dx over dy by rows n, dx over skip or x by elements.
// acc wraps at 32 bits: |acc| <= I * 128 * 255 < 2^31 for every I (y) and N (dw); for dx the host chooses fold so.

#include "plane.h"
#include "update.h"

static void add_rows(uint32_t acc[4], int32_t lanes, const struct mg_plane *plane, const int8_t *x, int32_t o, int32_t zx)
{
    const int32_t row = plane->channels * plane->step;
    mg_dot_rows(acc, lanes, plane->w + o * row, row, plane->step, x + plane->first, zx, plane->channels);
}

void mg_linear_fwd_s8(const struct mg_ctx *ctx, const struct mg_step_linear_fwd_s8 *k)
{
    const int8_t *x = mg_at(ctx, k->x);
    const int32_t *b = mg_at(ctx, k->b);
    const struct mg_output to = MG_OUTPUT(ctx, k);
    int8_t *y = mg_at(ctx, k->y);
    const struct mg_plane trained = mg_plane_trained(mg_at(ctx, k->wt), k->ws, k->it);
    const struct mg_plane frozen = mg_plane_frozen(mg_at(ctx, k->wf), k->it, k->i);
    for (int32_t n = 0; n < k->n; n++, x += k->i) {
        for (int32_t o = 0, lanes; o < k->o; o += lanes) {
            uint32_t acc[4] = {0};
            lanes = MG_LANES(o, k->o);
            add_rows(acc, lanes, &trained, x, o, k->zx);
            add_rows(acc, lanes, &frozen, x, o, k->zx);
            for (int32_t j = o; j < o + lanes; j++)
                *y++ = mg_output_of(&to, j, mg_add32(mg_wrap32(acc[j - o]), b[j] >> k->bf));
        }
    }
}

void mg_linear_fwd_s32(const struct mg_ctx *ctx, const struct mg_step_linear_fwd_s32 *k)
{
    const int8_t *x = mg_at(ctx, k->x);
    const int32_t *b = mg_at(ctx, k->b);
    int32_t *y = mg_at(ctx, k->y);
    const struct mg_plane trained = mg_plane_trained(mg_at(ctx, k->wt), k->ws, k->it);
    const struct mg_plane frozen = mg_plane_frozen(mg_at(ctx, k->wf), k->it, k->i);
    for (int32_t n = 0; n < k->n; n++, x += k->i) {
        for (int32_t o = 0, lanes; o < k->o; o += lanes) {
            uint32_t acc[4] = {0};
            lanes = MG_LANES(o, k->o);
            add_rows(acc, lanes, &trained, x, o, k->zx);
            add_rows(acc, lanes, &frozen, x, o, k->zx);
            for (int32_t j = o; j < o + lanes; j++)
                *y++ = mg_add32(mg_wrap32(acc[j - o]), b[j] >> k->bf);
        }
    }
}

static void put_plane(struct mg_error *error, size_t at, const struct mg_plane *plane, const int8_t *dy, const uint8_t *fold,
                      int32_t outputs)
{
    const int32_t n = plane->channels;
    for (int32_t c = 0, lanes; c < n; c += lanes) {
        uint32_t acc[4] = {0};
        lanes = MG_LANES(c, n);
        mg_fold_columns(acc, lanes, plane->w + c * plane->step, n * plane->step, plane->step, dy, fold, outputs);
        for (int32_t j = 0; j < lanes; j++)
            mg_error_put(error, at++, mg_wrap32(acc[j]));
    }
}

void mg_linear_bwd_x_s8(const struct mg_ctx *ctx, const struct mg_step_linear_bwd_x_s8 *k)
{
    const int8_t *dy = mg_at(ctx, k->dy);
    const uint8_t *fold = mg_at(ctx, k->fold);
    const struct mg_plane trained = mg_plane_trained(mg_at(ctx, k->wt), k->ws, k->it);
    const struct mg_plane frozen = mg_plane_frozen(mg_at(ctx, k->wf), k->it, k->i);
    struct mg_error error = MG_ERROR_BEGIN(ctx, k, MG_BITS(ctx, k));
    for (int32_t n = 0; n < k->n; n++, dy += k->o) {
        const size_t at = (size_t)n * k->i;
        put_plane(&error, at, &trained, dy, fold, k->o);
        put_plane(&error, at + k->it, &frozen, dy, fold, k->o);
    }
    mg_error_end(&error);
}

// What both updates read.
struct gradient {
    const int8_t *dy, *x;
    int32_t n, i, it, o, zx;
};

#define GRADIENT(ctx, k) {mg_at((ctx), (k)->dy), mg_at((ctx), (k)->x), (k)->n, (k)->i, (k)->it, (k)->o, (k)->zx}

static void update_all(const struct gradient *g, struct mg_update *update)
{
    size_t at = 0;
    for (int32_t o = 0; o < g->o; o++) {
        mg_update_channel(update, o);
        for (int32_t i = 0; i < g->it; i++) {
            uint32_t acc = 0;
            for (int32_t n = 0; n < g->n; n++)
                acc += (uint32_t)(g->dy[n * g->o + o] * (g->x[n * g->i + i] - g->zx));
            mg_update_put(update, at++, mg_wrap32(acc));
        }
    }
}

void mg_linear_upd_q16(const struct mg_ctx *ctx, const struct mg_step_linear_upd_q16 *k)
{
    const struct gradient g = GRADIENT(ctx, k);
    struct mg_update update = MG_UPDATE_Q16(ctx, k);
    update_all(&g, &update);
}

void mg_linear_upd_sr8(const struct mg_ctx *ctx, const struct mg_step_linear_upd_sr8 *k)
{
    const struct gradient g = GRADIENT(ctx, k);
    struct mg_update update = MG_UPDATE_SR8(ctx, k);
    update_all(&g, &update);
}
