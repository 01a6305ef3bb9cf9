// fuzz_frames.c -- libFuzzer: any bytes and any commands on the device's line. Nothing may leave its memory, and all that is sent
// must be good frames.
//
//   CC=clang cmake -S . -B build/fuzz -G Ninja -DMG_FUZZ=ON && ninja -C build/fuzz fuzz_frames
//   mkdir -p build/fuzz/frames && build/fuzz/fuzz_frames -max_len=4096 -max_total_time=600 build/fuzz/frames
//
// The input is a list of actions: raw bytes, a command with the right sequence number and CRC, a plan to load, damaged and with its
// CRC repaired, or a whole sample to train on. The board is this file.

#define _POSIX_C_SOURCE 200112L
#include <stdlib.h>
#include <string.h>

#include "mcugrad_port.h"
#include "plan.h"
#include "session.h"
#include "wire.h"

enum { POOL_BYTES = 2048, SLOT_BYTES = 1024, CHECKPOINT_BYTES = 128, LINE_BYTES = 1 << 16, INPUTS = 5, OUTPUTS = 3 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

// ---- a plan that trains, with a target --------------------------------------------------------------------------------

struct constants {
    mg_requant rq[OUTPUTS];
    float rate[OUTPUTS];
};

struct state {
    int32_t b[OUTPUTS];
    int16_t wt[OUTPUTS * INPUTS];
    mg_rng rng;
};

struct io {
    mg_args args;
    mg_result result;
    int8_t x[INPUTS], target[OUTPUTS], y[OUTPUTS];
};

struct arena {
    float unit;
    mg_exponent ry;
    int8_t dy[OUTPUTS];
};

struct plan {
    _Alignas(16) struct mg_header header;
    struct mg_step_linear_fwd_s8 forward;
    struct mg_step_mse_s8 loss;
    struct mg_step_linear_upd_q16 update;
    struct mg_step_tick tick;
    struct mg_step_commit_s16 commit;
    _Alignas(16) struct constants constants;
    _Alignas(16) struct state init;
};

#define IN_REGION(region, type, field) ((uint32_t)(region) << 30 | (uint32_t)offsetof(struct type, field))
#define ARENA(field) IN_REGION(MG_ARENA, arena, field)
#define CONST_(field) IN_REGION(MG_CONST, constants, field)
#define STATE(field) IN_REGION(MG_STATE, state, field)
#define IO(field) IN_REGION(MG_IO, io, field)
#define HEAD(code, field) {code, sizeof(((struct plan *)0)->field)}

_Static_assert(sizeof(struct plan) <= SLOT_BYTES && sizeof(struct plan) + 4 <= MG_LINK_BODY_BYTES, "one LOAD_DATA");

static const struct plan good_plan = {
    .header = {.magic = MG_PLAN_MAGIC, .version = MG_PLAN_VERSION, .header_bytes = sizeof(struct mg_header),
               .plan_bytes = sizeof(struct plan), .arena_bytes = sizeof(struct arena), .state_bytes = sizeof(struct state),
               .io_bytes = sizeof(struct io), .const_offset = offsetof(struct plan, constants),
               .const_bytes = sizeof(struct constants), .init_offset = offsetof(struct plan, init),
               .steps_offset = offsetof(struct plan, forward), .segment_steps = {1, 0, 1, 2, 1},
               .steps_bytes = offsetof(struct plan, commit) + sizeof(struct mg_step_commit_s16) - offsetof(struct plan, forward),
               .sample = IO(x), .sample_bytes = INPUTS, .args = IO(args), .result = IO(result), .output = IO(y),
               .output_bytes = OUTPUTS, .classes = 1, .rng = STATE(rng), .target = IO(target), .target_bytes = OUTPUTS},
    .forward = {.head = HEAD(0x03, forward), .n = 1, .i = INPUTS, .it = INPUTS, .o = OUTPUTS, .ws = 2, .bf = 8, .lo = -128, .hi = 127,
                .x = IO(x), .wt = STATE(wt), .b = STATE(b), .rq = CONST_(rq), .y = IO(y)},
    .loss = {.head = HEAD(0x23, loss), .sx = 0.1f, .st = 0.1f, .n = OUTPUTS, .x = IO(y), .target = IO(target), .args = IO(args),
             .dy = ARENA(dy), .unit = ARENA(unit), .ry = ARENA(ry), .result = IO(result)},
    .update = {.head = HEAD(0x45, update), .n = 1, .i = INPUTS, .it = INPUTS, .o = OUTPUTS, .af = 5, .dy = ARENA(dy), .ry = ARENA(ry),
               .x = IO(x), .unit = ARENA(unit), .args = IO(args), .rate = CONST_(rate), .wt = STATE(wt)},
    .tick = {.head = HEAD(0x4f, tick), .rng = STATE(rng)},
    .commit = {.head = HEAD(0x48, commit), .n = OUTPUTS * INPUTS, .af = 5, .wt = STATE(wt)},
    .constants = {.rq = {{1 << 30, -4}, {1 << 30, -4}, {1 << 30, 0}}, .rate = {1.0f, 2.0f, 0.0f}},
};

// ---- the board --------------------------------------------------------------------------------------------------------

static uint8_t *pool, *slot, *checkpoints[MG_STORE_SLOTS];
static uint8_t line[LINE_BYTES];
static size_t line_at, line_end;
static struct mg_frame_decoder host;
static uint8_t host_buffer[MG_FRAME_OVERHEAD_BYTES + MG_LINK_BODY_BYTES];

size_t mg_port_read(uint8_t *bytes, size_t n)
{
    size_t got = 0;
    while (got < n && line_at < line_end)
        bytes[got++] = line[line_at++];
    return got;
}

void mg_port_write(const uint8_t *bytes, size_t n)
{
    for (size_t k = 0; k < n; k++)
        if (mg_frame_push(&host, bytes[k]) < 0)
            abort();
}

bool mg_port_baud(uint32_t rate)
{
    return rate % 2 == 0;
}

void mg_port_timer_start(void)
{
}

uint64_t mg_port_timer_stop(void)
{
    return 0;
}

struct mg_port_pool mg_port_pool(void)
{
    return (struct mg_port_pool){pool, POOL_BYTES};
}

struct mg_port_slot mg_port_slot(void)
{
    return (struct mg_port_slot){slot, SLOT_BYTES};
}

int mg_port_slot_erase(size_t bytes)
{
    memset(slot, 0xFF, bytes);
    return 0;
}

int mg_port_slot_write(size_t offset, const uint8_t *bytes, size_t n)
{
    memcpy(slot + offset, bytes, n);
    return 0;
}

static int erase_checkpoint(void *user, uint32_t k)
{
    (void)user;
    memset(checkpoints[k], 0xFF, CHECKPOINT_BYTES);
    return 0;
}

static int program_checkpoint(void *user, uint32_t k, uint32_t offset, const uint8_t *bytes, uint32_t n)
{
    (void)user;
    memcpy(checkpoints[k] + offset, bytes, n);
    return 0;
}

static int read_checkpoint(void *user, uint32_t k, uint32_t offset, uint8_t *bytes, uint32_t n)
{
    (void)user;
    memcpy(bytes, checkpoints[k] + offset, n);
    return 0;
}

struct mg_store mg_port_store(void)
{
    return (struct mg_store){CHECKPOINT_BYTES, NULL, erase_checkpoint, program_checkpoint, read_checkpoint};
}

struct mg_port_usage mg_port_usage(void)
{
    return (struct mg_port_usage){0};
}

static void *allocate(size_t bytes)
{
    void *memory = NULL;
    if (posix_memalign(&memory, 16, bytes) != 0)
        abort();
    memset(memory, 0, bytes);
    return memory;
}

// ---- actions ----------------------------------------------------------------------------------------------------------

struct input {
    const uint8_t *bytes;
    size_t left;
};

static uint8_t next(struct input *in)
{
    if (in->left == 0)
        return 0;
    in->left--;
    return *in->bytes++;
}

static size_t take(struct input *in, uint8_t *bytes, size_t n)
{
    n = n < in->left ? n : in->left;
    memcpy(bytes, in->bytes, n);
    in->bytes += n;
    in->left -= n;
    return n;
}

static void to_line(void *port, const uint8_t *bytes, uint32_t n)
{
    (void)port;
    for (uint32_t k = 0; k < n && line_end < LINE_BYTES; k++)
        line[line_end++] = bytes[k];
}

static void deliver(struct mg_session *s)
{
    mg_session_poll(s);
    line_at = line_end = 0;
}

// A command on the line, `behind` others that are there already.
static void post(struct mg_session *s, uint8_t behind, uint8_t type, const uint8_t *body, uint32_t n)
{
    uint8_t frame[MG_FRAME_OVERHEAD_BYTES + MG_LINK_BODY_BYTES + 64] = {type, (uint8_t)(s->expected + behind)};
    memcpy(frame + MG_FRAME_HEAD_BYTES, body, n);
    mg_frame_send(frame, MG_FRAME_HEAD_BYTES + n, to_line, NULL);
}

static void command(struct mg_session *s, uint8_t type, const uint8_t *body, uint32_t n)
{
    post(s, 0, type, body, n);
    deliver(s);
}

static void hello(struct mg_session *s, uint8_t nonce)
{
    const uint8_t body[6] = {nonce, 0, 0, 1, MG_LINK_PROTOCOL, 0};
    command(s, MG_LINK_HELLO, body, sizeof body);
}

// The pool is too small for a plan that takes long.
static void load(struct mg_session *s, struct input *in)
{
    struct plan plan = good_plan;
    for (uint8_t k = next(in) % 4; k > 0; k--) {
        const size_t at = (size_t)(next(in) | next(in) << 8) % sizeof plan;
        ((uint8_t *)&plan)[at] = next(in);
    }
    plan.header.ops_hash = mg_ops_hash();
    plan.header.plan_bytes = sizeof plan;
    plan.header.plan_crc = mg_crc32(0, &plan.header.model_hash, sizeof plan - offsetof(struct mg_header, model_hash));
    uint8_t body[4 + sizeof plan];
    mg_put_u32(body, sizeof plan);
    command(s, MG_LINK_LOAD_BEGIN, body, 4);
    mg_put_u32(body, 0);
    memcpy(body + 4, &plan, sizeof plan);
    command(s, MG_LINK_LOAD_DATA, body, sizeof body);
    mg_put_u32(body, mg_crc32(0, &plan, sizeof plan));
    command(s, MG_LINK_LOAD_END, body, 4);
}

static void any_command(struct mg_session *s, struct input *in)
{
    static const uint8_t types[] = {MG_LINK_HELLO, MG_LINK_SYNC, MG_LINK_LOAD_BEGIN, MG_LINK_LOAD_DATA, MG_LINK_LOAD_END, MG_LINK_SAMPLE,
                                    MG_LINK_TRAIN, MG_LINK_PREDICT, MG_LINK_COMMIT, MG_LINK_READ, MG_LINK_WRITE_STATE, MG_LINK_RESET, MG_LINK_TRACE,
                                    MG_LINK_STATS, MG_LINK_BYE, MG_LINK_SAVE, MG_LINK_RESTORE, MG_LINK_CHECKPOINTS,
                                    MG_LINK_RESTART, MG_LINK_START, MG_LINK_RESULT, MG_LINK_BAUD, 0x7E, 0xFF};
    uint8_t body[MG_LINK_BODY_BYTES + 32] = {0};
    const uint8_t type = types[next(in) % sizeof types];
    const uint8_t length = next(in);
    const uint32_t n = length < 200 ? length % 40 : length * 4u;
    (void)take(in, body, n);
    if (type == MG_LINK_LOAD_END && n == 4 && s->load_bytes <= SLOT_BYTES && body[0] != 0)
        mg_put_u32(body, mg_crc32(0, slot, s->load_bytes));
    command(s, type, body, n);
}

static void learn(struct mg_session *s, struct input *in)
{
    uint8_t body[4 + INPUTS + OUTPUTS] = {0};
    (void)take(in, body + 4, sizeof body - 4);
    command(s, MG_LINK_SAMPLE, body, sizeof body);
    uint8_t args[12] = {next(in) % 2};
    mg_put_f32(args + 4, 0.05f);
    if (next(in) % 2 == 0) {
        command(s, MG_LINK_TRAIN, args, sizeof args);
        command(s, MG_LINK_SAMPLE, body, sizeof body);
    } else { // the next sample comes while this one is computed
        post(s, 0, MG_LINK_START, args, sizeof args);
        post(s, 1, MG_LINK_SAMPLE, body, sizeof body);
        post(s, 2, MG_LINK_RESULT, args, 0);
        deliver(s);
    }
    command(s, MG_LINK_COMMIT, body, 0);
    command(s, MG_LINK_SAMPLE, body, sizeof body);
    command(s, MG_LINK_PREDICT, body, 0);
}

static void raw(struct mg_session *s, struct input *in)
{
    line_end = take(in, line, next(in));
    deliver(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = {data, size};
    struct mg_session *session = allocate(sizeof *session);
    pool = allocate(POOL_BYTES);
    slot = allocate(SLOT_BYTES);
    for (int k = 0; k < MG_STORE_SLOTS; k++)
        checkpoints[k] = allocate(CHECKPOINT_BYTES);
    line_at = line_end = 0;
    mg_frame_decoder_init(&host, host_buffer, sizeof host_buffer);
    mg_session_init(session);
    for (int actions = 0; in.left != 0 && actions < 200; actions++) {
        const uint8_t action = next(&in);
        switch (action % 8) {
        case 0:
            raw(session, &in);
            break;
        case 1:
            hello(session, action);
            break;
        case 2:
            load(session, &in);
            break;
        case 3:
            learn(session, &in);
            break;
        default:
            any_command(session, &in);
            break;
        }
    }
    for (int k = 0; k < MG_STORE_SLOTS; k++)
        free(checkpoints[k]);
    free(slot);
    free(pool);
    free(session);
    return 0;
}
