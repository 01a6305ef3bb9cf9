// checkpoint.c -- STATE in flash, in two slots. SPEC.md section 3.8.
//
// A slot is a head of 32 bytes and STATE behind it. STATE is written first and read back, the head last: until it is whole, its
// CRC-32, which covers both, is wrong, and the other slot, which nobody has touched, is the newest. Slots are erased before each
// use, whatever they look like: an erase that was cut may read as blank and not be.

#include <string.h>

#include "plan.h"

#define CHECKPOINT_MAGIC 0x4B43474Du // "MGCK"
enum { CHECKPOINT_VERSION = 1, NO_SLOT = MG_STORE_SLOTS, PART_BYTES = 64 };

struct head {
    uint32_t magic;
    uint16_t version;
    uint16_t head_bytes;
    uint32_t sequence;
    uint32_t plan_crc;
    uint32_t model_hash;
    uint32_t state_bytes;
    uint32_t zero;
    uint32_t crc; // of all before, and of STATE
};
_Static_assert(sizeof(struct head) == MG_STORE_ALIGN_BYTES, "one program unit of the coarsest flash");

static int fail(struct mg_ctx *ctx, int code, uint32_t value, uint32_t limit)
{
    ctx->fault = (struct mg_fault){.code = code, .step = MG_NO_STEP, .value = value, .limit = limit};
    return code;
}

static uint32_t padded(uint32_t bytes)
{
    return (bytes + (MG_STORE_ALIGN_BYTES - 1)) & ~(uint32_t)(MG_STORE_ALIGN_BYTES - 1);
}

static uint32_t head_crc(const struct head *head)
{
    return mg_crc32(0, head, offsetof(struct head, crc));
}

// Continues *crc over n bytes of STATE in a slot.
static bool read_crc(const struct mg_store *store, uint32_t slot, uint32_t n, uint32_t *crc)
{
    uint8_t part[PART_BYTES];
    for (uint32_t at = 0; at < n; at += PART_BYTES) {
        const uint32_t size = n - at < PART_BYTES ? n - at : PART_BYTES;
        if (store->read(store->user, slot, (uint32_t)sizeof(struct head) + at, part, size) != 0)
            return false;
        *crc = mg_crc32(*crc, part, size);
    }
    return true;
}

static bool look(const struct mg_store *store, uint32_t slot, struct head *head)
{
    if (store->slot_bytes < sizeof *head || store->read(store->user, slot, 0, (uint8_t *)head, sizeof *head) != 0)
        return false;
    if (head->magic != CHECKPOINT_MAGIC || head->version != CHECKPOINT_VERSION || head->head_bytes != sizeof *head || head->zero != 0)
        return false;
    if (head->state_bytes > store->slot_bytes - sizeof *head)
        return false;
    uint32_t crc = head_crc(head);
    return read_crc(store, slot, head->state_bytes, &crc) && crc == head->crc;
}

// The sequence wraps: of two, the later one is less than half a turn ahead.
static bool is_later(uint32_t sequence, uint32_t than)
{
    return sequence - than - 1u < 0x7FFFFFFFu;
}

// The slot of the newest whole checkpoint, or NO_SLOT.
static uint32_t newest(const struct mg_store *store, struct head *head)
{
    struct head second;
    const bool first_good = look(store, 0, head);
    const bool second_good = look(store, 1, &second);
    if (!second_good || (first_good && !is_later(second.sequence, head->sequence)))
        return first_good ? 0 : NO_SLOT;
    *head = second;
    return 1;
}

bool mg_checkpoint_at(const struct mg_store *store, uint32_t slot, struct mg_checkpoint *found)
{
    struct head head;
    if (slot >= MG_STORE_SLOTS || !look(store, slot, &head))
        return false;
    *found = (struct mg_checkpoint){head.sequence, head.plan_crc, head.model_hash, head.state_bytes};
    return true;
}

static int program_state(struct mg_ctx *ctx, const struct mg_store *store, uint32_t slot, const uint8_t *state, uint32_t bytes)
{
    const uint32_t whole = bytes - bytes % MG_STORE_ALIGN_BYTES, at = sizeof(struct head);
    if (whole != 0 && store->program(store->user, slot, at, state, whole) != 0)
        return fail(ctx, MG_ERR_FLASH, at, slot);
    if (whole == bytes)
        return MG_OK;
    _Alignas(4) uint8_t rest[MG_STORE_ALIGN_BYTES];
    memset(rest, 0xFF, sizeof rest);
    memcpy(rest, state + whole, bytes - whole);
    if (store->program(store->user, slot, at + whole, rest, sizeof rest) != 0)
        return fail(ctx, MG_ERR_FLASH, at + whole, slot);
    return MG_OK;
}

static int program_head(struct mg_ctx *ctx, const struct mg_store *store, uint32_t slot, const struct head *head)
{
    struct head written;
    if (store->program(store->user, slot, 0, (const uint8_t *)head, sizeof *head) != 0 || !look(store, slot, &written) ||
        memcmp(&written, head, sizeof *head) != 0)
        return fail(ctx, MG_ERR_FLASH, 0, slot);
    return MG_OK;
}

int mg_save(struct mg_ctx *ctx, const struct mg_store *store, uint32_t *sequence)
{
    const uint32_t bytes = ctx->bytes[MG_STATE], needed = (uint32_t)sizeof(struct head) + padded(bytes);
    if (store->slot_bytes < needed)
        return fail(ctx, MG_ERR_STORE, needed, store->slot_bytes);
    struct head head;
    const uint32_t last = newest(store, &head), slot = last == 0 ? 1 : 0;
    head = (struct head){CHECKPOINT_MAGIC, CHECKPOINT_VERSION, sizeof head, last == NO_SLOT ? 1 : head.sequence + 1,
                         ctx->plan->plan_crc, ctx->plan->model_hash, bytes, 0, 0};
    uint32_t there = head_crc(&head);
    head.crc = mg_crc32(there, ctx->base[MG_STATE], bytes);
    if (store->erase(store->user, slot) != 0)
        return fail(ctx, MG_ERR_FLASH, 0, slot);
    int code = program_state(ctx, store, slot, ctx->base[MG_STATE], bytes);
    if (code != MG_OK)
        return code;
    if (!read_crc(store, slot, bytes, &there) || there != head.crc)
        return fail(ctx, MG_ERR_FLASH, (uint32_t)sizeof head, slot);
    code = program_head(ctx, store, slot, &head);
    if (code == MG_OK && sequence != NULL)
        *sequence = head.sequence;
    return code;
}

int mg_restore(struct mg_ctx *ctx, const struct mg_store *store, uint32_t *sequence)
{
    if (store->slot_bytes == 0)
        return fail(ctx, MG_ERR_STORE, (uint32_t)sizeof(struct head) + padded(ctx->bytes[MG_STATE]), 0);
    struct head head;
    const uint32_t slot = newest(store, &head), bytes = ctx->bytes[MG_STATE];
    if (slot == NO_SLOT)
        return fail(ctx, MG_ERR_EMPTY, 0, 0);
    if (head.plan_crc != ctx->plan->plan_crc)
        return fail(ctx, MG_ERR_OTHER, head.plan_crc, ctx->plan->plan_crc);
    if (head.state_bytes != bytes)
        return fail(ctx, MG_ERR_SIZE, bytes, head.state_bytes);
    if (store->read(store->user, slot, sizeof head, ctx->base[MG_STATE], bytes) != 0 ||
        mg_crc32(head_crc(&head), ctx->base[MG_STATE], bytes) != head.crc) {
        mg_reset(ctx);
        return fail(ctx, MG_ERR_FLASH, (uint32_t)sizeof head, slot);
    }
    if (sequence != NULL)
        *sequence = head.sequence;
    return MG_OK;
}
