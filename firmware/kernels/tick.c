// tick.c -- the last step of a training step: the random generator moves on. Wraps.

#include "plan.h"

void mg_tick(const struct mg_ctx *ctx, const struct mg_step_tick *k)
{
    mg_rng *rng = mg_at(ctx, k->rng);
    rng->tick++;
}
