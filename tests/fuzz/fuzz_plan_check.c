// fuzz_plan_check.c -- libFuzzer: any bytes as a plan. What mg_init accepts must run on any content of its regions, inside them.
//
//   CC=clang cmake -S . -B build/fuzz -G Ninja -DMG_FUZZ=ON && ninja -C build/fuzz fuzz_plan fuzz_plan_check
//   mkdir -p build/fuzz/plans && build/fuzz/fuzz_plan 100 1 build/fuzz/plans        (seeds: plans that are accepted)
//   build/fuzz/fuzz_plan_check -max_len=65536 -max_total_time=600 build/fuzz/plans
//
// Debian: apt install clang libclang-rt-14-dev. The harness repairs what would stop every mutation (magic, version, hash, sizes,
// CRC), gives each region its own allocation, and passes over plans that would only take long.

#define _POSIX_C_SOURCE 200112L
#include <stdlib.h>
#include <string.h>

#include "plan.h"

enum { MOST_BYTES = 1 << 18, MOST_WORK = 1 << 22 };

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint32_t dice(uint32_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return *state;
}

static void repair(struct mg_header *plan, size_t bytes)
{
    plan->magic = MG_PLAN_MAGIC;
    plan->version = MG_PLAN_VERSION;
    plan->header_bytes = sizeof *plan;
    plan->ops_hash = mg_ops_hash();
    plan->plan_bytes = (uint32_t)bytes;
    plan->plan_crc = mg_crc32(0, &plan->model_hash, bytes - offsetof(struct mg_header, model_hash));
}

static void *allocate(size_t bytes)
{
    void *memory = NULL;
    if (posix_memalign(&memory, 16, bytes != 0 ? bytes : 1) != 0)
        abort();
    return memory;
}

// ---- work -------------------------------------------------------------------------------------------------------------

static bool is_size(const char *name)
{
    return name[1] == 0 ? strchr("hwipqogrsncm", name[0]) != NULL : name[0] == 'd' && name[1] >= '0' && name[1] <= '3';
}

// Saturates.
static uint64_t times(uint64_t work, const char *name, int64_t value)
{
    if (!is_size(name) || value <= 1)
        return work;
    return work > MOST_WORK ? work : work * (uint64_t)value;
}

// More than the loops of the step can take: the product of all its sizes.
static uint64_t work_of(const struct mg_step *step)
{
    uint64_t work = 1;
    switch (step->code) {
#define STEP(name, code)                                                                                   \
    case code: {                                                                                           \
        const struct mg_step_##name *record = (const struct mg_step_##name *)(const void *)step;           \
        (void)record;
#define U8(field) work = times(work, #field, record->field);
#define S8(field) work = times(work, #field, record->field);
#define U16(field) work = times(work, #field, record->field);
#define S16(field) work = times(work, #field, record->field);
#define U32(field) work = times(work, #field, record->field);
#define S32(field) work = times(work, #field, record->field);
#define END(name) \
        break;    \
    }
#include "ops_each.h"
    default:
        break;
    }
    return work;
}

static bool takes_long(const struct mg_ctx *ctx)
{
    const uint8_t *at = (const uint8_t *)ctx->segment[MG_FORWARD];
    uint64_t work = 0;
    for (int segment = 0; segment < MG_SEGMENTS; segment++) {
        for (uint32_t k = 0; k < ctx->plan->segment_steps[segment]; k++) {
            const struct mg_step *step = (const struct mg_step *)(const void *)at;
            work += work_of(step);
            at += step->bytes;
        }
    }
    return work > MOST_WORK;
}

// ---- a plan -----------------------------------------------------------------------------------------------------------

static void after(void *user, uint32_t index, const struct mg_step *step)
{
    (void)index;
    (void)mg_outputs_crc(user, step);
}

static void run(struct mg_ctx *ctx)
{
    uint32_t state = ctx->plan->plan_crc | 1u;
    uint8_t *const base[MG_REGIONS] = {ctx->base[0], ctx->base[1], ctx->base[2], ctx->base[3]};
    for (int region = 0; region < MG_REGIONS; region++) {
        ctx->base[region] = allocate(ctx->bytes[region]);
        memcpy(ctx->base[region], base[region], ctx->bytes[region]);
        for (uint32_t k = 0; region != MG_CONST && k < ctx->bytes[region]; k++)
            ctx->base[region][k] = (uint8_t)dice(&state);
    }
    ctx->after = after;
    ctx->user = ctx;
    mg_predict(ctx);
    for (int k = 0; k < 2; k++)
        if (mg_train(ctx, (uint16_t)(dice(&state) % (mg_classes(ctx) + 1)), 0.01f, 0.0f, NULL) != MG_OK)
            continue;
    for (int region = 0; region < MG_REGIONS; region++)
        free(ctx->base[region]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < sizeof(struct mg_header))
        return 0;
    uint8_t *plan = allocate(size);
    memcpy(plan, data, size);
    repair((struct mg_header *)(void *)plan, size);
    const size_t needed = mg_memory_bytes(plan, size);
    if (needed <= MOST_BYTES) {
        struct mg_ctx ctx;
        uint8_t *memory = allocate(needed);
        if (mg_init(&ctx, plan, size, memory, needed) == MG_OK && !takes_long(&ctx))
            run(&ctx);
        free(memory);
    }
    free(plan);
    return 0;
}

// Seeds are mostly CONST and STATE: change the header and the steps most of the time, a few bytes at once.
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed)
{
    uint32_t state = seed | 1u, const_offset;
    if (size < sizeof(struct mg_header) || dice(&state) % 8 == 0)
        return LLVMFuzzerMutate(data, size, max_size);
    memcpy(&const_offset, data + offsetof(struct mg_header, const_offset), sizeof const_offset);
    const size_t end = const_offset > 24 && const_offset < size ? const_offset : size;
    for (uint32_t k = dice(&state) % 3; k < 3; k++) {
        const size_t at = 20 + dice(&state) % (end - 20);
        const size_t length = 1 + dice(&state) % 4;
        const size_t room = length < end - at ? length : end - at;
        (void)LLVMFuzzerMutate(data + at, room, room);
    }
    return size;
}
