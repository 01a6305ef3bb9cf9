// plan_check.c -- verifies a plan once, so that plan_run.c and the kernels can run it blind.
//
// Sizes are computed in int64_t: the largest count of ops.def is a product of at most 49 bits.
// One generated function per step kind walks its record: sizes, padding, NEEDs, then every reference with its byte length.
// What happens at a reference is the walk's own business: mg_check_step verifies it, mg_outputs_crc reads what was written.

#include "mg_ops_gen.h"
#include "plan.h"

enum access { ACCESS_IN, ACCESS_CONST, ACCESS_OUT, ACCESS_UPD };

typedef bool value_ok(const void *element);

// An element type of ops.def.
struct type {
    uint32_t bytes;
    uint32_t align;
    value_ok *ok;  // for CONST; NULL: any value
};

struct walk {
    const struct mg_ctx *ctx;
    const struct mg_step *step;
    struct mg_fault *fault;
    uint32_t crc;
    uint32_t at;  // offset in the record up to which it has been walked
    int (*visit)(struct walk *k, enum access access, const struct type *type, mg_ref ref, int64_t count);
};

static uint32_t saturate_u32(uint64_t v)
{
    return v > UINT32_MAX ? UINT32_MAX : (uint32_t)v;
}

static int fail(struct mg_fault *fault, int code, uint64_t value, uint64_t limit)
{
    fault->code = code;
    fault->value = saturate_u32(value);
    fault->limit = saturate_u32(limit);
    return code;
}

// ---- element types ----------------------------------------------------------------------------------------------------

static bool float_ok(const void *element)
{
    const float v = *(const float *)element;
    return v >= 0.0f && v <= 18446744073709551616.0f;
}

static bool requant_ok(const void *element)
{
    const mg_requant *v = element;
    return v->mult >= 0 && v->shift >= -31 && v->shift <= 30;
}

static const struct type type_int8_t = {1, 1, NULL};
static const struct type type_uint8_t = {1, 1, NULL};
static const struct type type_int16_t = {2, 2, NULL};
static const struct type type_int32_t = {4, 4, NULL};
static const struct type type_float = {4, 4, float_ok};
static const struct type type_mg_requant = {sizeof(mg_requant), 4, requant_ok};
static const struct type type_mg_exponent = {sizeof(mg_exponent), 1, NULL};
static const struct type type_mg_rng = {sizeof(mg_rng), 4, NULL};
static const struct type type_mg_args = {sizeof(mg_args), 4, NULL};
static const struct type type_mg_result = {sizeof(mg_result), 4, NULL};

// ---- one record -------------------------------------------------------------------------------------------------------

// The next field starts at `offset` and ends at `end`: the bytes before it are padding and must be zero.
static int walk_field(struct walk *k, uint32_t offset, uint32_t end)
{
    const uint8_t *record = (const uint8_t *)k->step;
    for (; k->at < offset; k->at++)
        if (record[k->at] != 0)
            return fail(k->fault, MG_ERR_RECORD, k->at, 0);
    k->at = end;
    return MG_OK;
}

static int check_ref(struct walk *k, enum access access, const struct type *type, mg_ref ref, int64_t count)
{
    const uint32_t region = ref >> 30;
    const uint32_t offset = ref & (MG_REGION_LIMIT - 1u);
    if (count == 0)
        return ref == 0 ? MG_OK : fail(k->fault, MG_ERR_REF, ref, 0);
    if (access == ACCESS_CONST && region != MG_CONST)
        return fail(k->fault, MG_ERR_REF, ref, (uint64_t)MG_CONST << 30);
    if ((access == ACCESS_OUT || access == ACCESS_UPD) && region == MG_CONST)
        return fail(k->fault, MG_ERR_READONLY, ref, 0);
    const uint64_t end = offset + (uint64_t)count * type->bytes;
    if (end > k->ctx->bytes[region])
        return fail(k->fault, MG_ERR_REF, end, k->ctx->bytes[region]);
    if (offset % type->align != 0)
        return fail(k->fault, MG_ERR_ALIGN, ref, type->align);
    if (access != ACCESS_CONST || type->ok == NULL)
        return MG_OK;
    const uint8_t *element = mg_at(k->ctx, ref);
    for (int64_t e = 0; e < count; e++, element += type->bytes)
        if (!type->ok(element))
            return fail(k->fault, MG_ERR_VALUE, (uint64_t)e, (uint64_t)count);
    return MG_OK;
}

static int crc_ref(struct walk *k, enum access access, const struct type *type, mg_ref ref, int64_t count)
{
    if (access == ACCESS_OUT || access == ACCESS_UPD)
        k->crc = mg_crc32(k->crc, mg_at(k->ctx, ref), (size_t)count * type->bytes);
    return MG_OK;
}

#define FIELD(field)                                                                                                \
    if (walk_field(k, offsetof(record, field), offsetof(record, field) + sizeof((record *)0)->field) != MG_OK)      \
        return k->fault->code;
#define SCALAR(field)                                                                                               \
    FIELD(field)                                                                                                    \
    const int64_t field = ((const record *)k->step)->field;                                                         \
    (void)field;
#define REF(access, type, field, count)                                                                             \
    FIELD(field)                                                                                                    \
    if (k->visit(k, access, &type_##type, ((const record *)k->step)->field, (count)) != MG_OK)                      \
        return k->fault->code;

#define STEP(name, code)                                                                                            \
    static int walk_##name(struct walk *k)                                                                          \
    {                                                                                                               \
        typedef struct mg_step_##name record;                                                                       \
        uint32_t needs = 0;                                                                                         \
        if (k->step->bytes != sizeof(record))                                                                       \
            return fail(k->fault, MG_ERR_RECORD, k->step->bytes, sizeof(record));
#define U8(field) SCALAR(field)
#define S8(field) SCALAR(field)
#define U16(field) SCALAR(field)
#define S16(field) SCALAR(field)
#define U32(field) SCALAR(field)
#define S32(field) SCALAR(field)
#define NEED(condition)                                                                                             \
    if (!(condition))                                                                                               \
        return fail(k->fault, MG_ERR_FIELD, needs, 0);                                                              \
    needs++;
#define IN(type, field, count) REF(ACCESS_IN, type, field, count)
#define CONST(type, field, count) REF(ACCESS_CONST, type, field, count)
#define OUT(type, field, count) REF(ACCESS_OUT, type, field, count)
#define UPD(type, field, count) REF(ACCESS_UPD, type, field, count)
#define END(name)                                                                                                   \
        (void)needs;                                                                                                \
        return walk_field(k, sizeof(record), sizeof(record));                                                       \
    }
#include "ops_each.h"

static int walk_step(struct walk *k)
{
    switch (k->step->code) {
#define STEP(name, code) \
    case code:           \
        return MG_HAS_##name ? walk_##name(k) : fail(k->fault, MG_ERR_KERNEL, code, 0);
#include "ops_each.h"
    default:
        return fail(k->fault, MG_ERR_CODE, k->step->code, 0);
    }
}

int mg_check_step(const struct mg_ctx *ctx, const struct mg_step *step, size_t room, struct mg_fault *fault)
{
    if (room < sizeof *step || step->bytes > room)
        return fail(fault, MG_ERR_RECORD, room < sizeof *step ? sizeof *step : step->bytes, room);
    struct walk k = {.ctx = ctx, .step = step, .fault = fault, .at = sizeof *step, .visit = check_ref};
    return walk_step(&k);
}

uint32_t mg_outputs_crc(const struct mg_ctx *ctx, const struct mg_step *step)
{
    struct mg_fault none;
    struct walk k = {.ctx = ctx, .step = step, .fault = &none, .at = sizeof *step, .visit = crc_ref};
    return walk_step(&k) == MG_OK ? k.crc : 0;
}

// ---- the whole plan ---------------------------------------------------------------------------------------------------

static int check_identity(const struct mg_header *plan, size_t plan_bytes, struct mg_fault *fault)
{
    if ((uintptr_t)plan % MG_PLAN_ALIGN != 0)
        return fail(fault, MG_ERR_ALIGN, (uintptr_t)plan & UINT32_MAX, MG_PLAN_ALIGN);
    if (plan_bytes < sizeof *plan)
        return fail(fault, MG_ERR_SIZE, sizeof *plan, plan_bytes);
    if (plan->magic != MG_PLAN_MAGIC)
        return fail(fault, MG_ERR_MAGIC, plan->magic, MG_PLAN_MAGIC);
    if (plan->version != MG_PLAN_VERSION)
        return fail(fault, MG_ERR_VERSION, plan->version, MG_PLAN_VERSION);
    if (plan->header_bytes != sizeof *plan)
        return fail(fault, MG_ERR_HEADER, plan->header_bytes, sizeof *plan);
    if (plan->ops_hash != MG_OPS_HASH)
        return fail(fault, MG_ERR_OPS, plan->ops_hash, MG_OPS_HASH);
    if (plan->plan_bytes < sizeof *plan)
        return fail(fault, MG_ERR_SIZE, sizeof *plan, plan->plan_bytes);
    if (plan->plan_bytes > plan_bytes)
        return fail(fault, MG_ERR_SIZE, plan->plan_bytes, plan_bytes);
    const size_t skipped = offsetof(struct mg_header, model_hash);
    const uint32_t crc = mg_crc32(0, (const uint8_t *)plan + skipped, plan->plan_bytes - skipped);
    return crc == plan->plan_crc ? MG_OK : fail(fault, MG_ERR_CRC, crc, plan->plan_crc);
}

struct part {
    uint32_t offset;
    uint32_t bytes;
    uint32_t align;
};

static int check_parts(const struct mg_header *plan, struct mg_fault *fault)
{
    const struct part parts[] = {
        {0, sizeof *plan, MG_PLAN_ALIGN},
        {plan->steps_offset, plan->steps_bytes, sizeof(uint32_t)},
        {plan->const_offset, plan->const_bytes, MG_PLAN_ALIGN},
        {plan->init_offset, plan->state_bytes, MG_PLAN_ALIGN},
    };
    const size_t n = sizeof parts / sizeof parts[0];
    for (size_t a = 0; a < n; a++) {
        const uint64_t end = (uint64_t)parts[a].offset + parts[a].bytes;
        if (end > plan->plan_bytes)
            return fail(fault, MG_ERR_SIZE, end, plan->plan_bytes);
        if (parts[a].offset % parts[a].align != 0)
            return fail(fault, MG_ERR_ALIGN, parts[a].offset, parts[a].align);
        for (size_t b = 0; b < a; b++) {
            const uint64_t end_b = (uint64_t)parts[b].offset + parts[b].bytes;
            if (parts[a].bytes != 0 && parts[b].bytes != 0 && parts[a].offset < end_b && parts[b].offset < end)
                return fail(fault, MG_ERR_HEADER, parts[a].offset, end_b);
        }
    }
    return MG_OK;
}

static int check_place(const struct mg_ctx *ctx, mg_ref ref, enum mg_region region, uint32_t bytes, uint32_t align,
                       struct mg_fault *fault)
{
    const uint32_t offset = ref & (MG_REGION_LIMIT - 1u);
    if (ref >> 30 != region)
        return fail(fault, MG_ERR_REF, ref, (uint64_t)region << 30);
    if ((uint64_t)offset + bytes > ctx->bytes[region])
        return fail(fault, MG_ERR_REF, (uint64_t)offset + bytes, ctx->bytes[region]);
    return offset % align == 0 ? MG_OK : fail(fault, MG_ERR_ALIGN, ref, align);
}

// The places that the runtime itself reads and writes. A plan that cannot train has no args, result and rng.
static int check_interface(const struct mg_ctx *ctx, struct mg_fault *fault)
{
    const struct mg_header *plan = ctx->plan;
    int code = check_place(ctx, plan->sample, MG_IO, plan->sample_bytes, 1, fault);
    if (code == MG_OK)
        code = check_place(ctx, plan->output, MG_IO, plan->output_bytes, 1, fault);
    if (code == MG_OK && plan->classes != 0)
        code = check_place(ctx, plan->args, MG_IO, sizeof(mg_args), 4, fault);
    if (code == MG_OK && plan->classes != 0)
        code = check_place(ctx, plan->result, MG_IO, sizeof(mg_result), 4, fault);
    if (code == MG_OK && plan->classes != 0)
        code = check_place(ctx, plan->rng, MG_STATE, sizeof(mg_rng), 4, fault);
    for (size_t k = 0; code == MG_OK && k < 2; k++)
        if (plan->reserved[k] != 0)
            return fail(fault, MG_ERR_HEADER, plan->reserved[k], 0);
    return code;
}

static int check_steps(struct mg_ctx *ctx)
{
    const struct mg_header *plan = ctx->plan;
    struct mg_fault *fault = &ctx->fault;
    const uint8_t *at = (const uint8_t *)plan + plan->steps_offset;
    size_t room = plan->steps_bytes;
    uint32_t index = 0;
    for (int segment = 0; segment < MG_SEGMENTS; segment++) {
        ctx->segment[segment] = (const struct mg_step *)(const void *)at;
        for (uint32_t k = 0; k < plan->segment_steps[segment]; k++, index++) {
            const struct mg_step *step = (const struct mg_step *)(const void *)at;
            fault->step = index;
            if (mg_check_step(ctx, step, room, fault) != MG_OK)
                return fault->code;
            at += step->bytes;
            room -= step->bytes;
        }
    }
    fault->step = MG_NO_STEP;
    return room == 0 ? MG_OK : fail(fault, MG_ERR_SIZE, plan->steps_bytes - room, plan->steps_bytes);
}

int mg_check_plan(struct mg_ctx *ctx, const void *plan, size_t plan_bytes)
{
    struct mg_fault *fault = &ctx->fault;
    *fault = (struct mg_fault){.code = MG_OK, .step = MG_NO_STEP};
    if (plan == NULL)
        return fail(fault, MG_ERR_ARG, 0, 0);
    const struct mg_header *header = plan;
    if (check_identity(header, plan_bytes, fault) != MG_OK || check_parts(header, fault) != MG_OK)
        return fault->code;
    ctx->plan = header;
    // CONST shares the type of the writable regions; check_ref refuses every step that would write there.
    ctx->base[MG_CONST] = (uint8_t *)(uintptr_t)plan + header->const_offset;
    ctx->bytes[MG_ARENA] = header->arena_bytes;
    ctx->bytes[MG_CONST] = header->const_bytes;
    ctx->bytes[MG_STATE] = header->state_bytes;
    ctx->bytes[MG_IO] = header->io_bytes;
    for (int region = 0; region < MG_REGIONS; region++)
        if (ctx->bytes[region] > MG_REGION_LIMIT)
            return fail(fault, MG_ERR_SIZE, ctx->bytes[region], MG_REGION_LIMIT);
    if (check_interface(ctx, fault) != MG_OK)
        return fault->code;
    return check_steps(ctx);
}

bool mg_kernel_linked(uint16_t code)
{
    switch (code) {
#define STEP(name, code) \
    case code:           \
        return MG_HAS_##name;
#include "ops_each.h"
    default:
        return false;
    }
}

uint32_t mg_ops_hash(void)
{
    return MG_OPS_HASH;
}
