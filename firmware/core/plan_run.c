// plan_run.c -- runs a verified plan: the whole control flow of the device.

#include <string.h>

#include "mg_ops_gen.h"
#include "plan.h"

// A kernel that is not linked is never called: plan_check has refused its step.
void mg_run_step(const struct mg_ctx *ctx, const struct mg_step *step)
{
    switch (step->code) {
#define STEP(name, code)                                               \
    case code:                                                         \
        if (MG_HAS_##name)                                             \
            mg_##name(ctx, (const struct mg_step_##name *)(const void *)step); \
        break;
#include "ops_each.h"
    default:
        break;
    }
}

static void run_segment(const struct mg_ctx *ctx, enum mg_segment segment)
{
    uint32_t index = 0;
    for (int before = 0; before < (int)segment; before++)
        index += ctx->plan->segment_steps[before];
    const uint8_t *at = (const uint8_t *)ctx->segment[segment];
    for (uint32_t k = 0; k < ctx->plan->segment_steps[segment]; k++) {
        const struct mg_step *step = (const struct mg_step *)(const void *)at;
        mg_run_step(ctx, step);
        if (ctx->after != NULL)
            ctx->after(ctx->user, index + k, step);
        at += step->bytes;
    }
}

static uint64_t round_up(uint64_t bytes)
{
    return (bytes + MG_PLAN_ALIGN - 1) / MG_PLAN_ALIGN * MG_PLAN_ALIGN;
}

static uint64_t memory_bytes(const struct mg_header *plan)
{
    return round_up(plan->state_bytes) + round_up(plan->io_bytes) + round_up(plan->arena_bytes);
}

size_t mg_memory_bytes(const void *plan, size_t plan_bytes)
{
    const struct mg_header *header = plan;
    if (plan == NULL || (uintptr_t)plan % MG_PLAN_ALIGN != 0 || plan_bytes < sizeof *header ||
        header->magic != MG_PLAN_MAGIC || header->version != MG_PLAN_VERSION)
        return 0;
    const uint64_t bytes = memory_bytes(header);
    return bytes > SIZE_MAX ? SIZE_MAX : (size_t)bytes;
}

static int fail(struct mg_ctx *ctx, int code, uint32_t value, uint32_t limit)
{
    ctx->fault = (struct mg_fault){.code = code, .step = MG_NO_STEP, .value = value, .limit = limit};
    return code;
}

int mg_init(struct mg_ctx *ctx, const void *plan, size_t plan_bytes, void *memory, size_t memory_given)
{
    if (ctx == NULL)
        return MG_ERR_ARG;
    *ctx = (struct mg_ctx){0};
    const int code = mg_check_plan(ctx, plan, plan_bytes);
    if (code != MG_OK)
        return code;
    const uint64_t needed = memory_bytes(ctx->plan);
    if (needed > memory_given)
        return fail(ctx, MG_ERR_NOMEM, needed > UINT32_MAX ? UINT32_MAX : (uint32_t)needed, (uint32_t)memory_given);
    if (memory == NULL)
        return fail(ctx, MG_ERR_ARG, 0, 0);
    if ((uintptr_t)memory % MG_PLAN_ALIGN != 0)
        return fail(ctx, MG_ERR_ALIGN, (uint32_t)(uintptr_t)memory, MG_PLAN_ALIGN);
    ctx->base[MG_STATE] = memory;
    ctx->base[MG_IO] = ctx->base[MG_STATE] + round_up(ctx->plan->state_bytes);
    ctx->base[MG_ARENA] = ctx->base[MG_IO] + round_up(ctx->plan->io_bytes);
    mg_reset(ctx);
    return MG_OK;
}

void mg_reset(struct mg_ctx *ctx)
{
    memcpy(ctx->base[MG_STATE], (const uint8_t *)ctx->plan + ctx->plan->init_offset, ctx->plan->state_bytes);
    memset(ctx->base[MG_IO], 0, ctx->plan->io_bytes);
    memset(ctx->base[MG_ARENA], 0, ctx->plan->arena_bytes);
}

void mg_predict(struct mg_ctx *ctx)
{
    run_segment(ctx, MG_FORWARD);
    run_segment(ctx, MG_EVAL);
}

static bool is_rate(float v)
{
    return v >= 0.0f && v <= 3.402823466e38f;
}

static int fail_rate(struct mg_ctx *ctx, float v)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    return fail(ctx, MG_ERR_ARG, bits, 0);
}

int mg_train(struct mg_ctx *ctx, uint16_t label, float lr, float skip, const struct mg_result **result)
{
    if (label >= ctx->plan->classes)
        return fail(ctx, MG_ERR_LABEL, label, ctx->plan->classes);
    if (!is_rate(lr))
        return fail_rate(ctx, lr);
    if (!is_rate(skip))
        return fail_rate(ctx, skip);
    const mg_args args = {.lr = lr, .skip = skip, .label = label};
    memcpy(mg_at(ctx, ctx->plan->args), &args, sizeof args);
    run_segment(ctx, MG_FORWARD);
    run_segment(ctx, MG_LOSS);
    const mg_result *told = mg_at(ctx, ctx->plan->result);
    if (told->skipped == 0)
        run_segment(ctx, MG_BACKWARD);
    if (result != NULL)
        *result = told;
    return MG_OK;
}

void mg_commit(struct mg_ctx *ctx)
{
    run_segment(ctx, MG_COMMIT);
}

int8_t *mg_sample(const struct mg_ctx *ctx)
{
    return mg_at(ctx, ctx->plan->sample);
}

size_t mg_sample_bytes(const struct mg_ctx *ctx)
{
    return ctx->plan->sample_bytes;
}

int8_t *mg_target(const struct mg_ctx *ctx)
{
    return ctx->plan->target_bytes != 0 ? mg_at(ctx, ctx->plan->target) : NULL;
}

size_t mg_target_bytes(const struct mg_ctx *ctx)
{
    return ctx->plan->target_bytes;
}

const int8_t *mg_output(const struct mg_ctx *ctx)
{
    return mg_at(ctx, ctx->plan->output);
}

size_t mg_output_bytes(const struct mg_ctx *ctx)
{
    return ctx->plan->output_bytes;
}

uint32_t mg_classes(const struct mg_ctx *ctx)
{
    return ctx->plan->classes;
}

uint8_t *mg_state(const struct mg_ctx *ctx, size_t *bytes)
{
    *bytes = ctx->bytes[MG_STATE];
    return ctx->base[MG_STATE];
}
