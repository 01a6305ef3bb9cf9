// plan_check.c -- verifies a plan once, so that plan_run.c and the kernels can run it blind.
//
// ops.def becomes, for each step kind, a table of its fields, a function that evaluates its NEEDs and one that evaluates its
// counts. What they say is used twice: mg_check_step verifies every reference, mg_outputs_crc reads what was written.
// NEEDs are evaluated in int64_t: the largest is a sum of four products of 48 bits. Counts are evaluated in uint64_t, after the
// NEEDs, which see to it that no difference is negative: the largest are products of four u16 or of two u32, below 2^64.

#include <string.h>

#include "mg_ops_gen.h"
#include "plan.h"

enum access { SCALAR, ACCESS_IN, ACCESS_CONST, ACCESS_OUT, ACCESS_UPD, RECORD_END };

// Element types of ops.def.
enum type {
    TYPE_int8_t,
    TYPE_uint8_t,
    TYPE_int16_t,
    TYPE_uint16_t,
    TYPE_int32_t,
    TYPE_float,
    TYPE_mg_requant,
    TYPE_mg_exponent,
    TYPE_mg_rng,
    TYPE_mg_args,
    TYPE_mg_result,
    TYPE_none,
};

// Of the scalars only a float has a type: the others may have any value that the NEEDs allow.
struct field {
    uint8_t offset;  // in the record; of RECORD_END: its size
    uint8_t bytes;
    uint8_t access;
    uint8_t type;
};

#define MAX_REFS 12

// A step kind: its fields, which NEED does not hold (-1 when all do), and one count for each reference.
struct kind {
    bool linked;
    const struct field *fields;
    int (*broken_need)(const struct mg_step *step);
    void (*counts)(const struct mg_step *step, uint64_t *count);
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

static const struct {
    uint8_t bytes;
    uint8_t align;
    bool (*ok)(const void *element);  // of a value in CONST; NULL: any
} types[] = {
    [TYPE_int8_t] = {1, 1, NULL},
    [TYPE_uint8_t] = {1, 1, NULL},
    [TYPE_int16_t] = {2, 2, NULL},
    [TYPE_uint16_t] = {2, 2, NULL},
    [TYPE_int32_t] = {4, 4, NULL},
    [TYPE_float] = {4, 4, float_ok},
    [TYPE_mg_requant] = {sizeof(mg_requant), 4, requant_ok},
    [TYPE_mg_exponent] = {sizeof(mg_exponent), 1, NULL},
    [TYPE_mg_rng] = {sizeof(mg_rng), 4, NULL},
    [TYPE_mg_args] = {sizeof(mg_args), 4, NULL},
    [TYPE_mg_result] = {sizeof(mg_result), 4, NULL},
};

// ---- step kinds -------------------------------------------------------------------------------------------------------

#define FIELD(field, access, type) {offsetof(record, field), sizeof(((record *)0)->field), access, TYPE_##type},
#define STEP(name, code)                               \
    static const struct field *fields_##name(void)     \
    {                                                  \
        typedef struct mg_step_##name record;          \
        static const struct field fields[] = {
#define U8(field) FIELD(field, SCALAR, none)
#define S8(field) FIELD(field, SCALAR, none)
#define U16(field) FIELD(field, SCALAR, none)
#define S16(field) FIELD(field, SCALAR, none)
#define U32(field) FIELD(field, SCALAR, none)
#define S32(field) FIELD(field, SCALAR, none)
#define F32(field) FIELD(field, SCALAR, float)
#define IN(type, field, count) FIELD(field, ACCESS_IN, type)
#define CONST(type, field, count) FIELD(field, ACCESS_CONST, type)
#define OUT(type, field, count) FIELD(field, ACCESS_OUT, type)
#define UPD(type, field, count) FIELD(field, ACCESS_UPD, type)
#define END(name)                                      \
            {sizeof(record), 0, RECORD_END, TYPE_none} \
        };                                             \
        return fields;                                 \
    }
#include "ops_each.h"

#define RECORD(name) const struct mg_step_##name *record = (const struct mg_step_##name *)(const void *)step; (void)record;
#define VALUE(field) const int64_t field = record->field; (void)field;
#define STEP(name, code)                                     \
    static int broken_need_##name(const struct mg_step *step) \
    {                                                        \
        int need = 0;                                        \
        RECORD(name)
#define U8(field) VALUE(field)
#define S8(field) VALUE(field)
#define U16(field) VALUE(field)
#define S16(field) VALUE(field)
#define U32(field) VALUE(field)
#define S32(field) VALUE(field)
#define NEED(condition)      \
    if (!(condition))        \
        return need;         \
    need++;
#define END(name)      \
        (void)need;    \
        return -1;     \
    }
#include "ops_each.h"
#undef VALUE

#define VALUE(field) const uint64_t field = (uint64_t)record->field; (void)field;
#define COUNT(count) *at++ = (count);
#define STEP(name, code)                                                 \
    static void counts_##name(const struct mg_step *step, uint64_t *at) \
    {                                                                    \
        RECORD(name)
#define U8(field) VALUE(field)
#define S8(field) VALUE(field)
#define U16(field) VALUE(field)
#define S16(field) VALUE(field)
#define U32(field) VALUE(field)
#define S32(field) VALUE(field)
#define IN(type, field, count) COUNT(count)
#define CONST(type, field, count) COUNT(count)
#define OUT(type, field, count) COUNT(count)
#define UPD(type, field, count) COUNT(count)
#define END(name) }
#include "ops_each.h"

#define STEP(name, code) _Static_assert(0
#define IN(type, field, count) + 1
#define CONST(type, field, count) + 1
#define OUT(type, field, count) + 1
#define UPD(type, field, count) + 1
#define END(name) <= MAX_REFS, "raise MAX_REFS");
#include "ops_each.h"

// fields is NULL where no step kind has this code. A kind that is not linked costs no flash.
static struct kind find_kind(uint16_t code)
{
    switch (code) {
#define STEP(name, code)                                                   \
    case code:                                                             \
        return MG_HAS_##name ? (struct kind){true, fields_##name(), broken_need_##name, counts_##name} : (struct kind){0};
#include "ops_each.h"
    default:
        return (struct kind){0};
    }
}

static bool code_exists(uint16_t code)
{
    switch (code) {
#define STEP(name, code) case code:
#include "ops_each.h"
        return true;
    default:
        return false;
    }
}

bool mg_kernel_linked(uint16_t code)
{
    return find_kind(code).linked;
}

uint32_t mg_ops_hash(void)
{
    return MG_OPS_HASH;
}

// ---- one record -------------------------------------------------------------------------------------------------------

// Size, padding (what lies between the end of one field and the start of the next must be zero), float scalars.
static int check_record(const struct mg_step *step, const struct field *field, struct mg_fault *fault)
{
    const uint8_t *record = (const uint8_t *)step;
    const struct field *end = field;
    while (end->access != RECORD_END)
        end++;
    if (step->bytes != end->offset)
        return fail(fault, MG_ERR_RECORD, step->bytes, end->offset);
    uint32_t at = sizeof *step;
    for (; field <= end; field++) {
        for (; at < field->offset; at++)
            if (record[at] != 0)
                return fail(fault, MG_ERR_RECORD, at, 0);
        if (field->access == SCALAR && field->type == TYPE_float && !float_ok(record + at))
            return fail(fault, MG_ERR_VALUE, at, 0);
        at += field->bytes;
    }
    return MG_OK;
}

static bool writes(const struct field *field)
{
    return field->access == ACCESS_OUT || field->access == ACCESS_UPD;
}

static mg_ref ref_of(const struct mg_step *step, const struct field *field)
{
    mg_ref ref;
    memcpy(&ref, (const uint8_t *)step + field->offset, sizeof ref);
    return ref;
}

static int check_scalar(const struct mg_step *step, const struct field *field, struct mg_fault *fault)
{
    const uint8_t *scalar = (const uint8_t *)step + field->offset;
    return field->type == TYPE_none || types[field->type].ok(scalar) ? MG_OK : fail(fault, MG_ERR_VALUE, 0, 1);
}

static int check_ref(const struct mg_ctx *ctx, const struct field *field, mg_ref ref, uint64_t count, struct mg_fault *fault)
{
    const uint32_t region = ref >> 30;
    const uint32_t offset = ref & (MG_REGION_LIMIT - 1u);
    const uint32_t bytes = types[field->type].bytes;
    if (count == 0)
        return ref == 0 ? MG_OK : fail(fault, MG_ERR_REF, ref, 0);
    if (field->access == ACCESS_CONST && region != MG_CONST)
        return fail(fault, MG_ERR_REF, ref, (uint64_t)MG_CONST << 30);
    if (writes(field) && region == MG_CONST)
        return fail(fault, MG_ERR_READONLY, ref, 0);
    const uint64_t end = count > MG_REGION_LIMIT ? count : offset + count * bytes;
    if (end > ctx->bytes[region])
        return fail(fault, MG_ERR_REF, end, ctx->bytes[region]);
    if (offset % types[field->type].align != 0)
        return fail(fault, MG_ERR_ALIGN, ref, types[field->type].align);
    if (field->access != ACCESS_CONST || types[field->type].ok == NULL)
        return MG_OK;
    const uint8_t *element = mg_at(ctx, ref);
    for (size_t e = 0; e < count; e++)
        if (!types[field->type].ok(element + e * bytes))
            return fail(fault, MG_ERR_VALUE, e, count);
    return MG_OK;
}

int mg_check_step(const struct mg_ctx *ctx, const struct mg_step *step, size_t room, struct mg_fault *fault)
{
    if (room < sizeof *step || step->bytes > room)
        return fail(fault, MG_ERR_RECORD, room < sizeof *step ? sizeof *step : step->bytes, room);
    const struct kind kind = find_kind(step->code);
    if (!kind.linked)
        return fail(fault, code_exists(step->code) ? MG_ERR_KERNEL : MG_ERR_CODE, step->code, 0);
    if (check_record(step, kind.fields, fault) != MG_OK)
        return fault->code;
    const int need = kind.broken_need(step);
    if (need >= 0)
        return fail(fault, MG_ERR_FIELD, (uint64_t)need, 0);
    uint64_t counts[MAX_REFS];
    const uint64_t *count = counts;
    kind.counts(step, counts);
    for (const struct field *field = kind.fields; field->access != RECORD_END; field++)
        if ((field->access == SCALAR ? check_scalar(step, field, fault)
                                     : check_ref(ctx, field, ref_of(step, field), *count++, fault)) != MG_OK)
            return fault->code;
    return MG_OK;
}

uint32_t mg_outputs_crc(const struct mg_ctx *ctx, const struct mg_step *step)
{
    const struct kind kind = find_kind(step->code);
    uint64_t counts[MAX_REFS];
    uint32_t crc = 0;
    if (!kind.linked)
        return 0;
    const uint64_t *count = counts;
    kind.counts(step, counts);
    for (const struct field *field = kind.fields; field->access != RECORD_END; field++) {
        if (writes(field))
            crc = mg_crc32(crc, mg_at(ctx, ref_of(step, field)), (size_t)*count * types[field->type].bytes);
        count += field->access != SCALAR;
    }
    return crc;
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

// The places that the runtime itself reads and writes. A plan that cannot train has no args, result and rng. The sample may be
// scratch: the first steps read it, and later ones may write there.
static int check_interface(const struct mg_ctx *ctx, struct mg_fault *fault)
{
    const struct mg_header *plan = ctx->plan;
    const enum mg_region scratch = plan->sample >> 30 == MG_ARENA ? MG_ARENA : MG_IO;
    int code = check_place(ctx, plan->sample, scratch, plan->sample_bytes, 1, fault);
    if (code == MG_OK)
        code = check_place(ctx, plan->output, MG_IO, plan->output_bytes, 1, fault);
    if (code == MG_OK && plan->classes != 0)
        code = check_place(ctx, plan->args, MG_IO, sizeof(mg_args), 4, fault);
    if (code == MG_OK && plan->classes != 0)
        code = check_place(ctx, plan->result, MG_IO, sizeof(mg_result), 4, fault);
    if (code == MG_OK && plan->classes != 0)
        code = check_place(ctx, plan->rng, MG_STATE, sizeof(mg_rng), 4, fault);
    if (code == MG_OK && plan->target_bytes != 0)
        code = check_place(ctx, plan->target, MG_IO, plan->target_bytes, 1, fault);
    if (code == MG_OK && plan->target_bytes == 0 && plan->target != 0)
        return fail(fault, MG_ERR_HEADER, plan->target, 0);
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
