// plane.h -- the weights of a layer: a trained and a frozen plane, and the sums over their channels.
//
// Along the input channels (along the output channels for depthwise) the first T belong to the trained plane, the rest to
// the frozen one. A trained weight is Q8.8, whose high byte is the weight, or int8; `step` is the distance of two weights.
// Sums wrap to 32 bits: they are unsigned.

#ifndef MG_PLANE_H
#define MG_PLANE_H

#include "fixed.h"

struct mg_plane {
    const int8_t *w;
    int32_t step;      // bytes from weight to weight
    int32_t first;     // channel
    int32_t channels;
};

// ws: bytes of a trained weight, 1 or 2
static inline struct mg_plane mg_plane_trained(const int8_t *wt, int32_t ws, int32_t trained)
{
    return (struct mg_plane){wt + (ws - 1), ws, 0, trained};
}

static inline struct mg_plane mg_plane_frozen(const int8_t *wf, int32_t trained, int32_t all)
{
    return (struct mg_plane){wf, 1, trained, all - trained};
}

// The sums come for one lane and for four: a lane is an output channel going forward, an input channel going back. Four share
// the loads of what is common, which halves the instructions; MG_LANES says how many to take next.
#define MG_LANES(at, end) ((end) - (at) >= 4 ? 4 : 1)

// sum over k of w[k * step] * (x[k] - zx)
static inline uint32_t mg_dot(const int8_t *w, int32_t step, const int8_t *x, int32_t zx, int32_t n)
{
    uint32_t acc = 0;
    for (int32_t k = 0; k < n; k++)
        acc += (uint32_t)(w[k * step] * (x[k] - zx));
    return acc;
}

// acc[j] += sum over k of w[j * row + k * step] * (x[k] - zx)
static inline void mg_dot4(uint32_t acc[4], const int8_t *w, int32_t row, int32_t step, const int8_t *x, int32_t zx, int32_t n)
{
    const int8_t *w1 = w + row, *w2 = w1 + row, *w3 = w2 + row;
    uint32_t a0 = 0, a1 = 0, a2 = 0, a3 = 0;
    for (int32_t k = 0; k < n; k++) {
        const int32_t v = x[k] - zx;
        a0 += (uint32_t)(w[k * step] * v);
        a1 += (uint32_t)(w1[k * step] * v);
        a2 += (uint32_t)(w2[k * step] * v);
        a3 += (uint32_t)(w3[k * step] * v);
    }
    acc[0] += a0;
    acc[1] += a1;
    acc[2] += a2;
    acc[3] += a3;
}

// Lanes are rows of a plane: acc[j] += sum over its n weights from w + j * row on.
static inline void mg_dot_rows(uint32_t acc[4], int32_t lanes, const int8_t *w, int32_t row, int32_t step, const int8_t *x,
                               int32_t zx, int32_t n)
{
    if (lanes != 4)
        acc[0] += mg_dot(w, step, x, zx, n);
    else if (step == 1)
        mg_dot4(acc, w, row, 1, x, zx, n);
    else
        mg_dot4(acc, w, row, 2, x, zx, n);
}

// sum over o of w[o * row] * (dy[o] * fold[o])
static inline uint32_t mg_fold(const int8_t *w, int32_t row, const int8_t *dy, const uint8_t *fold, int32_t n)
{
    uint32_t acc = 0;
    for (int32_t o = 0; o < n; o++)
        acc += (uint32_t)(w[o * row] * (dy[o] * fold[o]));
    return acc;
}

// acc[j] += sum over o of w[o * row + j * step] * (dy[o] * fold[o])
static inline void mg_fold4(uint32_t acc[4], const int8_t *w, int32_t row, int32_t step, const int8_t *dy, const uint8_t *fold,
                            int32_t n)
{
    uint32_t a0 = 0, a1 = 0, a2 = 0, a3 = 0;
    for (int32_t o = 0; o < n; o++) {
        const int32_t e = dy[o] * fold[o];
        const int8_t *v = w + o * row;
        a0 += (uint32_t)(v[0] * e);
        a1 += (uint32_t)(v[step] * e);
        a2 += (uint32_t)(v[2 * step] * e);
        a3 += (uint32_t)(v[3 * step] * e);
    }
    acc[0] += a0;
    acc[1] += a1;
    acc[2] += a2;
    acc[3] += a3;
}

// Lanes are channels of a plane: acc[j] += the errors of n outputs through the weights w + j * step.
static inline void mg_fold_columns(uint32_t acc[4], int32_t lanes, const int8_t *w, int32_t row, int32_t step, const int8_t *dy,
                                   const uint8_t *fold, int32_t n)
{
    if (lanes != 4)
        acc[0] += mg_fold(w, row, dy, fold, n);
    else if (step == 1)
        mg_fold4(acc, w, row, 1, dy, fold, n);
    else
        mg_fold4(acc, w, row, 2, dy, fold, n);
}

// The taps t in [first, end) of n at start + t * pitch, pitch >= 0, that lie in [0, size).
struct mg_taps {
    int32_t first, end;
};

static inline struct mg_taps mg_taps(int32_t start, int32_t pitch, int32_t n, int32_t size)
{
    struct mg_taps taps = {0, n};
    while (taps.first < n && start + taps.first * pitch < 0)
        taps.first++;
    while (taps.end > taps.first && start + (taps.end - 1) * pitch >= size)
        taps.end--;
    return taps;
}

// The taps that lead from an input position back to outputs: tap + k * tap_pitch leads to out + k * out_pitch, k < count.
struct mg_sources {
    int32_t count;
    int32_t tap, tap_pitch;
    int32_t out, out_pitch;
};

// All (tap, out) with out * stride + tap * pitch = at, tap < taps, out < outs. `at` is the position plus the padding.
static inline struct mg_sources mg_sources(int32_t at, int32_t pitch, int32_t stride, int32_t taps, int32_t outs)
{
    struct mg_sources found = {0};
    for (int32_t tap = 0; tap < taps && at - tap * pitch >= 0; tap++) {
        const int32_t out = (at - tap * pitch) / stride;
        if (out * stride != at - tap * pitch || out >= outs)
            continue;
        if (found.count == 0) {
            found.tap = tap;
            found.out = out;
        } else if (found.count == 1) {
            found.tap_pitch = tap - found.tap;
            found.out_pitch = out - found.out;
        }
        found.count++;
    }
    return found;
}

#endif
