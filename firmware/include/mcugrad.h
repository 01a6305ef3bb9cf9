// mcugrad.h -- the whole public C API: train and run a quantized network by a plan.
//
// The caller owns all memory. One context runs one plan; contexts are independent; nothing here allocates, blocks or keeps
// file-scope state. A plan is verified once by mg_init and may be hostile; after that, no content of the regions can make a
// step leave them.
//
// A loop that learns from a sensor:
//
//     static _Alignas(16) uint8_t memory[MEMORY_BYTES];     // mg_memory_bytes(plan, sizeof plan) says how many
//     struct mg_ctx net;
//     if (mg_init(&net, plan, sizeof plan, memory, sizeof memory) != MG_OK) fail(&net.fault);
//     for (;;) {
//       uint16_t label = read_sensor(mg_sample(&net), mg_sample_bytes(&net));
//       const struct mg_result *result;
//       if (mg_train(&net, label, 0.01f, 0.1f, &result) != MG_OK) fail(&net.fault);
//     }

#ifndef MCUGRAD_H
#define MCUGRAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MG_NODISCARD __attribute__((warn_unused_result))
#define MG_PLAN_VERSION 2
#define MG_NO_STEP UINT32_MAX

// What went wrong. In brackets: what mg_fault.value and mg_fault.limit tell.
enum mg_err {
  MG_OK = 0,
  MG_ERR_ARG = -1,        // a null pointer, or lr or skip negative, infinite or NaN    [bits of the float, 0]
  MG_ERR_ALIGN = -2,      // an address or reference is not aligned                     [address or reference, alignment]
  MG_ERR_SIZE = -3,       // a part does not fit into the plan, or the plan into its buffer [bytes needed, bytes there]
  MG_ERR_MAGIC = -4,      // not a plan                                                 [magic, magic expected]
  MG_ERR_VERSION = -5,    // a plan format that this firmware does not know             [version, version known]
  MG_ERR_OPS = -6,        // made for another table of step kinds                       [hash, hash of this firmware]
  MG_ERR_CRC = -7,        // damaged                                                    [CRC of the bytes, CRC in the header]
  MG_ERR_HEADER = -8,     // a header field that must have one value has another        [value, value expected]
  MG_ERR_NOMEM = -9,      // memory too small                                           [bytes needed, bytes given]
  MG_ERR_CODE = -10,      // no step kind has this code                                 [code, 0]
  MG_ERR_KERNEL = -11,    // the step kind exists, its kernel is not linked             [code, 0]
  MG_ERR_RECORD = -12,    // a record has the wrong size or a padding byte is not zero  [bytes or offset of the byte, bytes expected or 0]
  MG_ERR_FIELD = -13,     // a NEED of ops.def does not hold                            [which one, counted from 0, 0]
  MG_ERR_REF = -14,       // a reference leaves its region or names a region that it must not, or is unused and not 0 [end, limit]
  MG_ERR_READONLY = -15,  // a step writes into CONST                                   [reference, 0]
  MG_ERR_VALUE = -16,     // a value in CONST, or a float of a record, is out of range  [index of the element, elements]
  MG_ERR_LABEL = -17,     // label is not a class; a plan that cannot train has 0 classes [label, classes]
  MG_ERR_STORE = -18,     // no storage for checkpoints, or its slots are too small     [bytes needed, bytes of a slot]
  MG_ERR_FLASH = -19,     // the flash failed, or did not keep what was written         [offset in the slot, slot]
  MG_ERR_EMPTY = -20,     // no slot holds a whole checkpoint                           [0, 0]
  MG_ERR_OTHER = -21,     // the checkpoint is another plan's                           [plan_crc of the checkpoint, of this plan]
};

// Why the last call that failed did so; a host can print it.
struct mg_fault {
  int code;        // enum mg_err
  uint32_t step;   // index of the step in the plan, MG_NO_STEP when it is not about one
  uint32_t value;  // the value that was refused
  uint32_t limit;  // what it was compared with
};

enum mg_region { MG_ARENA = 0, MG_CONST = 1, MG_STATE = 2, MG_IO = 3, MG_REGIONS = 4 };
enum mg_segment { MG_FORWARD = 0, MG_EVAL = 1, MG_LOSS = 2, MG_BACKWARD = 3, MG_COMMIT = 4, MG_SEGMENTS = 5 };

// Every step record begins with this; plan.h has the rest.
struct mg_step {
  uint16_t code;
  uint16_t bytes;
};

// What the loss tells about the sample.
struct mg_result {
  float loss;
  float peak;        // largest |dL/dlogit|
  int32_t argmax;    // the class predicted
  uint32_t skipped;  // 1: the sample was certain enough, nothing was updated
};

struct mg_header;

// Called after each step, `index` counted from 0 over the whole plan. It may read ctx's regions, and must not write them.
typedef void mg_after(void *user, uint32_t index, const struct mg_step *step);

// Everything a running plan needs. Caller-owned; filled by mg_init. Set `after` and `user` after mg_init, at any time.
struct mg_ctx {
  const struct mg_header *plan;
  uint8_t *base[MG_REGIONS];  // CONST is never written: no accepted step may
  uint32_t bytes[MG_REGIONS];
  const struct mg_step *segment[MG_SEGMENTS];
  mg_after *after;  // NULL: no hook
  void *user;
  struct mg_fault fault;
};

// Bytes of memory that mg_init needs for this plan; 0 when it is not a plan of this version. Reads only the header, which is
// not verified: a damaged plan may give any number.
size_t mg_memory_bytes(const void *plan, size_t plan_bytes);

// Verifies the plan, splits `memory` into STATE, IO and ARENA, and does mg_reset. `plan` and `memory` must stay and not
// overlap, both aligned to 16. plan_bytes may be more than the plan has.
// Errors: any but MG_ERR_LABEL, in ctx->fault; the context is then unusable, memory untouched. NULL ctx: MG_ERR_ARG.
MG_NODISCARD int mg_init(struct mg_ctx *ctx, const void *plan, size_t plan_bytes, void *memory, size_t memory_bytes);

// STATE as the plan brings it; IO and ARENA zero. Cannot fail.
void mg_reset(struct mg_ctx *ctx);

// The input of the model: write the whole sample here anew before each mg_predict or mg_train. It does not survive them: a plan
// may place it in ARENA, where later steps write.
int8_t *mg_sample(const struct mg_ctx *ctx);
size_t mg_sample_bytes(const struct mg_ctx *ctx);

// The target of a regression loss, as int8 as the model's output: write it here before each mg_train, with label 0.
// NULL and 0 bytes where the loss takes a label.
int8_t *mg_target(const struct mg_ctx *ctx);
size_t mg_target_bytes(const struct mg_ctx *ctx);

// The output of the model after mg_predict.
const int8_t *mg_output(const struct mg_ctx *ctx);
size_t mg_output_bytes(const struct mg_ctx *ctx);

// Number of classes of the loss, 1 for a regression loss, 0 when the plan cannot train.
uint32_t mg_classes(const struct mg_ctx *ctx);

// Runs the model on the sample. Cannot fail after mg_init.
void mg_predict(struct mg_ctx *ctx);

// One training step on the sample: forward, loss, then backward and update unless max |dL/dlogit| < skip (0: never skip,
// unless the error is exactly 0). *result, when result is not NULL, points into IO until the next step.
// Errors: MG_ERR_LABEL (label >= classes), MG_ERR_ARG (lr or skip not finite or negative). Nothing has run then.
MG_NODISCARD int mg_train(struct mg_ctx *ctx, uint16_t label, float lr, float skip, const struct mg_result **result);

// The end of a micro-batch, after N calls of mg_train with lr / N: what they have summed up goes into the weights, which
// have not moved until then. The sums are part of STATE. Does nothing for a plan that updates with every sample.
void mg_commit(struct mg_ctx *ctx);

// STATE: trained weights, sums of a micro-batch, exponents, random generator. A checkpoint is a copy of these bytes; writing them
// back restores it.
uint8_t *mg_state(const struct mg_ctx *ctx, size_t *bytes);

// Flash for checkpoints: two slots of slot_bytes each, a multiple of 32; 0: there is none. Offsets count from the start of a slot.
// Each function returns 0, or another value where the flash failed. None of them is called before mg_save or mg_restore is.
enum { MG_STORE_SLOTS = 2, MG_STORE_ALIGN_BYTES = 32 };
struct mg_store {
  uint32_t slot_bytes;
  void *user;
  // Erases a whole slot.
  int (*erase)(void *user, uint32_t slot);
  // Programs n bytes; offset and n are multiples of 32, `bytes` is aligned to 4. No byte is programmed twice between two erases.
  int (*program)(void *user, uint32_t slot, uint32_t offset, const uint8_t *bytes, uint32_t n);
  // Reads n bytes. After a power cut they may be anything; where the flash reports that (ECC), it fails here and traps nowhere.
  int (*read)(void *user, uint32_t slot, uint32_t offset, uint8_t *bytes, uint32_t n);
};

struct mg_checkpoint {
  uint32_t sequence;  // 1 for the first, one more each time; it wraps
  uint32_t plan_crc;
  uint32_t model_hash;
  uint32_t state_bytes;
};

// Writes STATE into the slot that does not hold the newest checkpoint. A power cut at any moment leaves that one or the new one
// to be found, whole. *sequence, when sequence is not NULL, is that of the new one.
// Errors: STORE, FLASH (the newest checkpoint is then still there).
MG_NODISCARD int mg_save(struct mg_ctx *ctx, const struct mg_store *store, uint32_t *sequence);

// STATE from the newest whole checkpoint. Trusts nothing in the slots.
// Errors: STORE, EMPTY, OTHER, SIZE: STATE is as it was. FLASH (read once well and then not): STATE, IO and ARENA are as after mg_reset.
MG_NODISCARD int mg_restore(struct mg_ctx *ctx, const struct mg_store *store, uint32_t *sequence);

// What a slot holds; false when that is no whole checkpoint.
bool mg_checkpoint_at(const struct mg_store *store, uint32_t slot, struct mg_checkpoint *found);

// CRC-32 over everything that a step of the plan of ctx writes, in the order of its record: for traces.
uint32_t mg_outputs_crc(const struct mg_ctx *ctx, const struct mg_step *step);

// Whether the kernel of a step code is in this firmware. False for codes that do not exist.
bool mg_kernel_linked(uint16_t code);

// CRC-32 of the table of step kinds: plans must be made for the same.
uint32_t mg_ops_hash(void);

// zlib's CRC-32. Start with crc = 0; feed the result back to continue.
uint32_t mg_crc32(uint32_t crc, const void *data, size_t bytes);

#ifdef __cplusplus
}
#endif

#endif
