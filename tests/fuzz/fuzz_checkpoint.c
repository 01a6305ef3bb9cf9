// fuzz_checkpoint.c -- libFuzzer: any bytes in the two checkpoint slots. Nothing may be read or written outside slots and STATE, what
// mg_restore takes must be a whole checkpoint of the plan, and a checkpoint saved on top of any content must come back.
//
//   CC=clang cmake -S . -B build/fuzz -G Ninja -DMG_FUZZ=ON && ninja -C build/fuzz fuzz_checkpoint
//   mkdir -p build/fuzz/checkpoints && build/fuzz/fuzz_checkpoint -max_len=512 -max_total_time=600 build/fuzz/checkpoints
//
// The input is a byte that says what to repair (so that more than the CRC is tried), a byte for the size of the slots, and the content.

#define _POSIX_C_SOURCE 200112L
#include <stdlib.h>
#include <string.h>

#include "plan.h"

enum { STATE_BYTES = 44, MOST_SLOT_BYTES = 256, HEAD_BYTES = 32 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct flash {
    uint32_t slot_bytes;
    uint8_t *slots[MG_STORE_SLOTS]; // each its own allocation, so that a step outside is seen
    uint32_t reads_left;            // then they fail
};

static int erase(void *user, uint32_t slot)
{
    struct flash *flash = user;
    memset(flash->slots[slot], 0xFF, flash->slot_bytes);
    return 0;
}

static int program(void *user, uint32_t slot, uint32_t offset, const uint8_t *bytes, uint32_t n)
{
    struct flash *flash = user;
    if (offset % MG_STORE_ALIGN_BYTES != 0 || n % MG_STORE_ALIGN_BYTES != 0)
        abort();
    memcpy(flash->slots[slot] + offset, bytes, n);
    return 0;
}

static int read(void *user, uint32_t slot, uint32_t offset, uint8_t *bytes, uint32_t n)
{
    struct flash *flash = user;
    if (flash->reads_left == 0)
        return -1;
    flash->reads_left--;
    memcpy(bytes, flash->slots[slot] + offset, n);
    return 0;
}

static uint32_t get(const uint8_t *at)
{
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static void put(uint8_t *at, uint32_t value)
{
    memcpy(at, &value, sizeof value);
}

// Make a slot look whole, as far as `what` says: its start, its plan, its size, its CRC.
static void repair(uint8_t *slot, uint32_t slot_bytes, uint32_t plan_crc, unsigned what)
{
    if (slot_bytes < HEAD_BYTES)
        return;
    if (what & 1u) {
        put(slot, 0x4B43474Du);
        put(slot + 4, 1u | HEAD_BYTES << 16);
        put(slot + 24, 0);
    }
    if (what & 2u)
        put(slot + 12, plan_crc);
    if (what & 4u)
        put(slot + 20, STATE_BYTES);
    const uint32_t bytes = get(slot + 20);
    if ((what & 8u) && bytes <= slot_bytes - HEAD_BYTES)
        put(slot + 28, mg_crc32(mg_crc32(0, slot, HEAD_BYTES - 4), slot + HEAD_BYTES, bytes));
}

static bool holds(const struct flash *flash, uint32_t slot, uint32_t plan_crc, const uint8_t *state)
{
    return flash->slot_bytes >= HEAD_BYTES + STATE_BYTES && get(flash->slots[slot] + 12) == plan_crc &&
           memcmp(flash->slots[slot] + HEAD_BYTES, state, STATE_BYTES) == 0;
}

static void require(bool holds_)
{
    if (!holds_)
        abort();
}

static void restore(struct mg_ctx *ctx, const struct mg_store *store, const struct flash *flash)
{
    uint8_t before[STATE_BYTES];
    uint32_t sequence;
    memcpy(before, ctx->base[MG_STATE], STATE_BYTES);
    const int code = mg_restore(ctx, store, &sequence);
    const uint8_t *state = ctx->base[MG_STATE];
    if (code == MG_OK) {
        require(holds(flash, 0, ctx->plan->plan_crc, state) || holds(flash, 1, ctx->plan->plan_crc, state));
    } else if (code != MG_ERR_FLASH) {
        require(memcmp(before, state, STATE_BYTES) == 0);
    }
}

static void save(struct mg_ctx *ctx, const struct mg_store *store, struct flash *flash)
{
    uint8_t saved[STATE_BYTES];
    uint32_t sequence, restored;
    memset(ctx->base[MG_STATE], 0x5A, STATE_BYTES);
    memcpy(saved, ctx->base[MG_STATE], STATE_BYTES);
    if (mg_save(ctx, store, &sequence) != MG_OK)
        return;
    flash->reads_left = UINT32_MAX;
    memset(ctx->base[MG_STATE], 0, STATE_BYTES);
    require(mg_restore(ctx, store, &restored) == MG_OK && restored == sequence);
    require(memcmp(saved, ctx->base[MG_STATE], STATE_BYTES) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 3)
        return 0;
    const unsigned what = data[0];
    _Alignas(16) struct {
        struct mg_header header;
        uint8_t init[STATE_BYTES];
    } plan = {.header = {.plan_crc = 0x12345678, .state_bytes = STATE_BYTES, .init_offset = sizeof(struct mg_header)}};
    struct flash flash = {.slot_bytes = data[1] % (MOST_SLOT_BYTES / MG_STORE_ALIGN_BYTES + 1) * MG_STORE_ALIGN_BYTES,
                          .reads_left = data[2] < 128 ? UINT32_MAX : data[2] - 128u};
    data += 3;
    size -= 3;
    for (uint32_t slot = 0; slot < MG_STORE_SLOTS; slot++) {
        flash.slots[slot] = calloc(flash.slot_bytes + (flash.slot_bytes == 0), 1);
        const size_t n = size < flash.slot_bytes ? size : flash.slot_bytes;
        memcpy(flash.slots[slot], data, n);
        data += n;
        size -= n;
        repair(flash.slots[slot], flash.slot_bytes, plan.header.plan_crc, what >> 4 * slot);
    }
    uint8_t *state = calloc(STATE_BYTES, 1);
    struct mg_ctx ctx = {.plan = &plan.header, .base = {state, NULL, state, state}, .bytes = {[MG_STATE] = STATE_BYTES}};
    const struct mg_store store = {flash.slot_bytes, &flash, erase, program, read};
    struct mg_checkpoint found;
    for (uint32_t slot = 0; slot < MG_STORE_SLOTS; slot++)
        if (mg_checkpoint_at(&store, slot, &found))
            require(found.state_bytes <= flash.slot_bytes - HEAD_BYTES);
    restore(&ctx, &store, &flash);
    save(&ctx, &store, &flash);
    free(state);
    for (uint32_t slot = 0; slot < MG_STORE_SLOTS; slot++)
        free(flash.slots[slot]);
    return 0;
}
