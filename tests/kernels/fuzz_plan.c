// fuzz_plan.c -- hostile plans against plan_check and the kernels. Build with -DMG_SANITIZE=ON: a finding ends the process.
//
//   fuzz_plan ROUNDS SEED [FOLDER]     the folder gets the plans that were accepted, as seeds for tests/fuzz
//
// A round makes records of every step kind with random scalars and references, runs those that are accepted on random
// regions (each its own allocation, so that AddressSanitizer sees the smallest step outside), puts some into a plan, damages
// the plan, repairs its CRC, and runs it where mg_init accepts it. Prints how much was accepted: a fuzzer whose inputs are
// all refused tests nothing.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plan.h"

#ifndef REGION_BYTES
#define REGION_BYTES (1 << 14)
#endif
enum { MAX_STEPS = 24, PLAN_BYTES = 2 * REGION_BYTES + (1 << 14) };

static uint32_t seed;

static uint32_t dice(uint32_t n)
{
    seed ^= seed << 13;
    seed ^= seed >> 17;
    seed ^= seed << 5;
    return seed % n;
}

static void fill(uint8_t *bytes, size_t n)
{
    for (size_t k = 0; k < n; k++)
        bytes[k] = (uint8_t)dice(256);
}

// CONST as floats or as mg_requant, now and then with one bad value.
static void fill_const(uint8_t *bytes, size_t n)
{
    const uint32_t kind = dice(2);
    for (size_t k = 0; k + 8 <= n; k += 8) {
        const float f[2] = {(float)dice(1000) / 64.0f, 1e-3f};
        const mg_requant rq = {(int32_t)(dice(UINT32_MAX) >> 1), (int32_t)dice(62) - 31};
        memcpy(bytes + k, kind == 0 ? (const void *)f : (const void *)&rq, 8);
    }
    if (n > 0 && dice(8) == 0)
        bytes[dice((uint32_t)n)] = 0xFF;
}

// Mostly small; seldom an end of the type's range.
static int64_t any_scalar(int64_t lo, int64_t hi)
{
    if (dice(40) == 0)
        return dice(2) ? lo : hi;
    const int64_t v = (int64_t)dice(9) - (lo < 0 && dice(2) ? 4 : 0);
    return dice(6) != 0 ? v : lo < 0 ? (int64_t)dice(256) - 128 : (int64_t)dice(20);
}

static bool is_one_of(const char *name, const char *const *names, size_t n)
{
    for (size_t k = 0; k < n; k++)
        if (strcmp(name, names[k]) == 0)
            return true;
    return false;
}

#define IS_ONE_OF(name, ...) \
    is_one_of((name), (const char *const[]){__VA_ARGS__}, sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *))

// As any_scalar; what seldom passes its NEED by chance is mostly made to.
static int64_t scalar(const char *name, int64_t lo, int64_t hi)
{
    if (dice(16) == 0)
        return any_scalar(lo, hi);
    if (IS_ONE_OF(name, "bp", "bc", "rounding", "has_skip", "has_mask", "has_bits", "has_fill", "max", "second"))
        return dice(2);
    if (IS_ONE_OF(name, "asign", "bsign", "sign"))
        return dice(2) ? 1 : -1;
    if (IS_ONE_OF(name, "ash", "bsh"))
        return -(int64_t)dice(32);
    if (IS_ONE_OF(name, "ysh", "psh", "nsh"))
        return (int64_t)dice(62) - 31;
    if (IS_ONE_OF(name, "xn", "yn"))
        return dice(200);
    if (IS_ONE_OF(name, "af", "bf"))
        return dice(10);
    if (IS_ONE_OF(name, "g"))
        return 1 + dice(3);
    return any_scalar(lo, hi);
}

static float any_float(void)
{
    const uint32_t bits = dice(UINT32_MAX);
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

// Finite and not negative most of the time.
static float real(void)
{
    return dice(20) ? (float)dice(1000) / 64.0f : any_float();
}

// In the region that fits the access most of the time, aligned most of the time.
static mg_ref reference(int writes, int in_const)
{
    static const uint32_t readable[] = {MG_ARENA, MG_CONST, MG_STATE, MG_IO};
    static const uint32_t writable[] = {MG_ARENA, MG_STATE, MG_IO};
    const uint32_t region = in_const ? MG_CONST : writes && dice(200) ? writable[dice(3)] : readable[dice(4)];
    const uint32_t offset = dice(4) ? dice(REGION_BYTES / 8) * 4 : dice(8) ? REGION_BYTES - dice(256) * 4 : dice(REGION_BYTES);
    return region << 30 | offset;
}

#define STEP(name, code_)                                                                       \
    static size_t make_##name(uint8_t *bytes)                                                   \
    {                                                                                           \
        struct mg_step_##name record = {.head = {code_, sizeof record}};
#define U8(field) record.field = (uint8_t)scalar(#field, 0, UINT8_MAX);
#define S8(field) record.field = (int8_t)scalar(#field, INT8_MIN, INT8_MAX);
#define U16(field) record.field = (uint16_t)scalar(#field, 0, UINT16_MAX);
#define S16(field) record.field = (int16_t)scalar(#field, INT16_MIN, INT16_MAX);
#define U32(field) record.field = (uint32_t)scalar(#field, 0, UINT32_MAX);
#define S32(field) record.field = (int32_t)(dice(2) ? (int64_t)dice(INT32_MAX) : any_scalar(INT32_MIN, INT32_MAX));
#define F32(field) record.field = real();
#define IN(type, field, count) record.field = reference(0, 0);
#define CONST(type, field, count) record.field = reference(0, 1);
#define OUT(type, field, count) record.field = reference(1, 0);
#define UPD(type, field, count) record.field = reference(1, 0);
#define END(name)                                                                               \
        memcpy(bytes, &record, sizeof record);                                                  \
        return sizeof record;                                                                   \
    }
#include "ops_each.h"

static size_t (*const makers[])(uint8_t *bytes) = {
#define STEP(name, code) make_##name,
#include "ops_each.h"
};
enum { KINDS = sizeof makers / sizeof makers[0] };

static uint32_t accepted_steps[KINDS];
static uint32_t accepted_plans;

// Sets the reference that plan_check found unused to 0.
static void clear(uint8_t *record, size_t n, uint32_t ref)
{
    for (size_t at = 4; at < n; at += 4) {
        uint32_t word;
        memcpy(&word, record + at, 4);
        if (word == ref)
            memset(record + at, 0, 4);
    }
}

// A record that the regions of ctx accept, 0 bytes where none was found.
static size_t make_accepted(const struct mg_ctx *ctx, uint32_t kind, uint8_t *bytes)
{
    struct mg_fault fault;
    for (int attempt = 0; attempt < 300; attempt++) {
        const size_t n = makers[kind](bytes);
        for (int repair = 0; repair < 6; repair++) {
            const int code = mg_check_step(ctx, (const struct mg_step *)(const void *)bytes, n, &fault);
            if (code == MG_OK)
                return n;
            if (code != MG_ERR_REF || fault.limit != 0)
                break;
            clear(bytes, n, fault.value);
        }
    }
    return 0;
}

static void run_steps(struct mg_ctx *ctx)
{
    _Alignas(16) uint8_t record[256];
    for (uint32_t kind = 0; kind < KINDS; kind++) {
        if (make_accepted(ctx, kind, record) == 0)
            continue;
        accepted_steps[kind]++;
        mg_run_step(ctx, (const struct mg_step *)(const void *)record);
        (void)mg_outputs_crc(ctx, (const struct mg_step *)(const void *)record);
    }
}

static uint32_t make_plan(const struct mg_ctx *ctx, uint8_t *plan)
{
    struct mg_header *h = (struct mg_header *)(void *)plan;
    memset(plan, 0, PLAN_BYTES);
    *h = (struct mg_header){.magic = MG_PLAN_MAGIC, .version = MG_PLAN_VERSION, .header_bytes = sizeof *h, .ops_hash = mg_ops_hash(),
                            .arena_bytes = ctx->bytes[MG_ARENA], .state_bytes = ctx->bytes[MG_STATE], .io_bytes = ctx->bytes[MG_IO],
                            .steps_offset = sizeof *h, .sample = 3u << 30, .sample_bytes = 64, .output = 3u << 30 | 64,
                            .output_bytes = 16, .args = 3u << 30 | 128, .result = 3u << 30 | 144, .classes = 4, .rng = 2u << 30,
                            .target = 3u << 30 | 160, .target_bytes = 16};
    uint32_t at = h->steps_offset;
    for (uint32_t k = 0; k < MAX_STEPS; k++) {
        const size_t n = make_accepted(ctx, dice(KINDS), plan + at);
        h->segment_steps[dice(MG_SEGMENTS)] += n != 0;
        at += (uint32_t)n;
    }
    h->steps_bytes = at - h->steps_offset;
    h->const_offset = (at + 15) / 16 * 16;
    h->const_bytes = ctx->bytes[MG_CONST];
    memcpy(plan + h->const_offset, ctx->base[MG_CONST], h->const_bytes);
    h->init_offset = (h->const_offset + h->const_bytes + 15) / 16 * 16;
    memcpy(plan + h->init_offset, ctx->base[MG_STATE], h->state_bytes);
    h->plan_bytes = h->init_offset + h->state_bytes;
    return h->plan_bytes;
}

static void damage(uint8_t *plan, uint32_t bytes)
{
    struct mg_header *h = (struct mg_header *)(void *)plan;
    const uint32_t steps_end = h->const_offset;
    for (uint32_t k = dice(3); k > 0; k--) {
        const uint32_t at = dice(8) ? 12 + dice(steps_end - 12) : dice(bytes);
        plan[at] = (uint8_t)(dice(2) ? plan[at] ^ 1u << dice(8) : dice(256));
    }
    const uint32_t end = h->plan_bytes <= bytes && h->plan_bytes >= sizeof *h ? h->plan_bytes : bytes;
    h->plan_crc = mg_crc32(0, plan + 20, end - 20);
}

static void save(const char *folder, const uint8_t *plan, uint32_t bytes)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%08x.plan", folder, (unsigned)mg_crc32(0, plan, bytes));
    FILE *file = fopen(path, "wb");
    if (file == NULL || fwrite(plan, 1, bytes, file) != bytes || fclose(file) != 0) {
        perror(path);
        exit(1);
    }
}

static void run_plan(const struct mg_ctx *regions, const char *folder)
{
    uint8_t *plan = aligned_alloc(16, PLAN_BYTES);
    struct mg_ctx ctx;
    const uint32_t bytes = make_plan(regions, plan);
    damage(plan, bytes);
    const size_t needed = mg_memory_bytes(plan, bytes);
    uint8_t *memory = needed < 1u << 20 ? aligned_alloc(16, needed != 0 ? needed : 16) : NULL;
    if (memory != NULL && mg_init(&ctx, plan, bytes, memory, needed) == MG_OK) {
        accepted_plans++;
        if (folder != NULL)
            save(folder, plan, bytes);
        fill((uint8_t *)mg_sample(&ctx), mg_sample_bytes(&ctx));
        fill((uint8_t *)mg_target(&ctx), mg_target_bytes(&ctx));
        mg_predict(&ctx);
        for (int k = 0; k < 3; k++)
            if (mg_train(&ctx, (uint16_t)dice(5), 0.01f, 0.0f, NULL) == MG_OK)
                mg_commit(&ctx);
    }
    free(memory);
    free(plan);
}

int main(int argc, char **argv)
{
    if (argc != 3 && argc != 4) {
        fprintf(stderr, "usage: fuzz_plan ROUNDS SEED [FOLDER]\n");
        return 2;
    }
    seed = (uint32_t)strtoul(argv[2], NULL, 10) * 2654435769u | 1u;
    struct mg_ctx ctx = {0};
    for (int region = 0; region < MG_REGIONS; region++) {
        ctx.bytes[region] = REGION_BYTES;
        ctx.base[region] = aligned_alloc(16, REGION_BYTES);
    }
    for (long round = strtol(argv[1], NULL, 10); round > 0; round--) {
        fill(ctx.base[MG_ARENA], REGION_BYTES);
        fill_const(ctx.base[MG_CONST], REGION_BYTES);
        fill(ctx.base[MG_STATE], REGION_BYTES);
        fill(ctx.base[MG_IO], REGION_BYTES);
        run_steps(&ctx);
        run_plan(&ctx, argc == 4 ? argv[3] : NULL);
    }
    for (int region = 0; region < MG_REGIONS; region++)
        free(ctx.base[region]);
    uint32_t kind = 0;
#define STEP(name, code) printf("%s %u\n", #name, accepted_steps[kind++]);
#include "ops_each.h"
    printf("plans %u\n", accepted_plans);
    return 0;
}
