// plan.h -- the plan as C sees it: header, step records, the structures in the regions. SPEC.md sections 1 and 2.

#ifndef MG_PLAN_H
#define MG_PLAN_H

#include "mcugrad.h"

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "plans and regions are little-endian"
#endif

#define MG_PLAN_MAGIC 0x4C50474Du
#define MG_PLAN_ALIGN 16u
#define MG_REGION_LIMIT (1u << 30)

// region << 30 | offset
typedef uint32_t mg_ref;

struct mg_header {
  uint32_t magic;
  uint16_t version;
  uint16_t header_bytes;
  uint32_t ops_hash;
  uint32_t plan_bytes;
  uint32_t plan_crc;  // of everything after this field
  uint32_t model_hash;
  uint32_t arena_bytes;
  uint32_t state_bytes;
  uint32_t io_bytes;
  uint32_t const_offset;
  uint32_t const_bytes;
  uint32_t init_offset;
  uint32_t steps_offset;
  uint32_t segment_steps[MG_SEGMENTS];
  uint32_t steps_bytes;
  mg_ref sample;
  uint32_t sample_bytes;
  mg_ref args;
  mg_ref result;
  mg_ref output;
  uint32_t output_bytes;
  uint32_t classes;
  mg_ref rng;
  mg_ref target;
  uint32_t target_bytes;
};
_Static_assert(sizeof(struct mg_header) == 116, "SPEC.md section 1");

// real factor mult * 2^(shift - 31)
typedef struct mg_requant {
  int32_t mult;
  int32_t shift;
} mg_requant;

// exponent of an error tensor: r of the tensor as it is now, next for the next sample
typedef struct mg_exponent {
  int8_t r;
  int8_t next;
  uint8_t count;
  uint8_t zero;
} mg_exponent;

typedef struct mg_rng {
  uint32_t seed;
  uint32_t tick;
} mg_rng;

typedef struct mg_args {
  float lr;
  float skip;
  uint16_t label;
  uint16_t zero;
} mg_args;

typedef struct mg_result mg_result;

_Static_assert(sizeof(mg_requant) == 8 && sizeof(mg_exponent) == 4 && sizeof(mg_rng) == 8, "SPEC.md section 1");
_Static_assert(sizeof(mg_args) == 12 && sizeof(mg_result) == 16, "SPEC.md section 1");

// struct mg_step_<name>: the records.
#define STEP(name, code) \
  struct mg_step_##name { \
    struct mg_step head;
#define U8(field) uint8_t field;
#define S8(field) int8_t field;
#define U16(field) uint16_t field;
#define S16(field) int16_t field;
#define U32(field) uint32_t field;
#define S32(field) int32_t field;
#define F32(field) float field;
#define IN(type, field, count) mg_ref field;
#define CONST(type, field, count) mg_ref field;
#define OUT(type, field, count) mg_ref field;
#define UPD(type, field, count) mg_ref field;
#define END(name) };
#include "ops_each.h"

// void mg_<name>(ctx, record): the kernels.
#define STEP(name, code) void mg_##name(const struct mg_ctx *ctx, const struct mg_step_##name *step);
#include "ops_each.h"

// The bytes that a reference of an accepted step names.
static inline void *mg_at(const struct mg_ctx *ctx, mg_ref ref) {
  return ctx->base[ref >> 30] + (ref & (MG_REGION_LIMIT - 1u));
}

// Verifies one record against the regions of ctx; `room` is the bytes from `step` to the end of the steps. Reads CONST.
// Errors, in *fault (whose step is left alone): CODE, KERNEL, RECORD, FIELD, REF, ALIGN, READONLY, VALUE.
MG_NODISCARD int mg_check_step(const struct mg_ctx *ctx, const struct mg_step *step, size_t room, struct mg_fault *fault);

// Verifies a plan as a whole and fills plan, base[MG_CONST], bytes and segment of ctx; the other bases are the caller's to set.
// Errors, in ctx->fault: all of mg_init's but NOMEM.
MG_NODISCARD int mg_check_plan(struct mg_ctx *ctx, const void *plan, size_t plan_bytes);

// Runs one accepted step.
void mg_run_step(const struct mg_ctx *ctx, const struct mg_step *step);

#endif
