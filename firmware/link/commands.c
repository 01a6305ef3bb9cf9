// commands.c -- what each command does (SPEC.md section 4.3). Bodies are checked here and nowhere else on the device.
#include "session.h"

#include "mcugrad_port.h"
#include "plan.h"
#ifdef MG_PLAN_KEY
#include "signed.h"
#endif
#include "wire.h"

#include <string.h>

typedef int command(struct mg_session *s, struct mg_link_call *call);

static int refuse(struct mg_link_call *call, int code, uint32_t value, uint32_t limit) {
  call->fault = (struct mg_fault){code, MG_NO_STEP, value, limit};
  return code;
}

static int refuse_by_plan(struct mg_session *s, struct mg_link_call *call, int code) {
  call->fault = s->ctx.fault;
  return code;
}

// ---- plan ---------------------------------------------------------------------------------------------------------------

static uint32_t steps_of(const struct mg_ctx *ctx) {
  uint32_t steps = 0;
  for (int i = 0; i < MG_SEGMENTS; i++)
    steps += ctx->plan->segment_steps[i];
  return steps;
}

// Bytes of the pool that the plan uses, rounded up so that the trace may follow.
static size_t plan_memory_bytes(const struct mg_session *s) {
  return (mg_memory_bytes(s->ctx.plan, s->ctx.plan->plan_bytes) + 3) & ~(size_t)3;
}

// Bytes of one training sample on the line: the model's input, then the target of a regression loss.
static uint32_t line_bytes(const struct mg_ctx *ctx) {
  return (uint32_t)(mg_sample_bytes(ctx) + mg_target_bytes(ctx));
}

// Samples wait behind the plan's memory, where there is room for one. The trace lies there too, and goes first.
static void place_ahead(struct mg_session *s) {
  struct mg_port_pool pool = mg_port_pool();
  size_t used = plan_memory_bytes(s);
  s->ahead = s->trace == NULL && used <= pool.bytes && line_bytes(&s->ctx) <= pool.bytes - used ? pool.base + used : NULL;
  s->sample_at = 0;
}

static void trace_off(struct mg_session *s) {
  s->trace = NULL;
  s->trace_steps = 0;
  s->ctx.after = NULL;
  if (s->loaded)
    place_ahead(s);
}

// STATE was set as a whole.
static void begin_state(struct mg_session *s) {
  s->state_id = s->open ? s->nonce : 0;
  s->changes = 0;
  s->step.progress = MG_LINK_IDLE;
}

static uint32_t ahead_bytes(const struct mg_session *s) {
  return s->loaded && s->ahead != NULL ? line_bytes(&s->ctx) : 0;
}

static void begin_plan(struct mg_session *s) {
  memset(s->ctx.base[MG_ARENA], MG_LINK_PAINT, s->ctx.bytes[MG_ARENA]);
  s->sample_at = 0;
  begin_state(s);
}

static bool may_run(const uint8_t *plan, uint32_t bytes) {
#ifdef MG_PLAN_KEY
  static const uint8_t key[] = {MG_PLAN_KEY};
  _Static_assert(sizeof key == 32, "MG_PLAN_KEY_FILE has 32 bytes");
  return mg_is_signed(key, plan, bytes);
#else
  (void)plan;
  (void)bytes;
  return true;
#endif
}

int mg_session_take_plan(struct mg_session *s, uint32_t plan_bytes) {
  struct mg_port_pool pool = mg_port_pool();
  s->loaded = false;
  trace_off(s);
  if (!may_run(mg_port_slot().base, plan_bytes)) {
    s->ctx.fault = (struct mg_fault){MG_LINK_ERR_KEY, MG_NO_STEP, 0, 0};
    return MG_LINK_ERR_KEY;
  }
  int err = mg_init(&s->ctx, mg_port_slot().base, plan_bytes, pool.base, pool.bytes);
  if (err != MG_OK)
    return err;
  s->loaded = true;
  place_ahead(s);
  begin_plan(s);
  return MG_OK;
}

static int load_begin(struct mg_session *s, struct mg_link_call *call) {
  uint32_t bytes = mg_get_u32(call->body);
  struct mg_port_slot slot = mg_port_slot();
  s->loaded = false;
  trace_off(s);
  s->step.progress = MG_LINK_IDLE;
  s->loading = false;
  if (bytes == 0 || bytes > slot.bytes)
    return refuse(call, MG_LINK_ERR_SLOT, bytes, (uint32_t)slot.bytes);
  if (mg_port_slot_erase(bytes) != 0)
    return refuse(call, MG_LINK_ERR_FLASH, 0, 0);
  s->loading = true;
  s->load_bytes = bytes;
  s->load_at = 0;
  return MG_OK;
}

static int load_data(struct mg_session *s, struct mg_link_call *call) {
  uint32_t offset = mg_get_u32(call->body);
  uint32_t n = call->body_bytes - 4;
  if (!s->loading || offset != s->load_at || offset % MG_LINK_DATA_ALIGN_BYTES != 0)
    return refuse(call, MG_LINK_ERR_ORDER, offset, s->loading ? s->load_at : 0);
  if (n > s->load_bytes - offset)
    return refuse(call, MG_LINK_ERR_RANGE, offset + n, s->load_bytes);
  if (mg_port_slot_write(offset, call->body + 4, n) != 0)
    return refuse(call, MG_LINK_ERR_FLASH, offset, 0);
  s->load_at += n;
  return MG_OK;
}

static int load_end(struct mg_session *s, struct mg_link_call *call) {
  uint32_t sent = mg_get_u32(call->body);
  if (!s->loading || s->load_at != s->load_bytes)
    return refuse(call, MG_LINK_ERR_ORDER, s->load_at, s->loading ? s->load_bytes : 0);
  s->loading = false;
  uint32_t there = mg_crc32(0, mg_port_slot().base, s->load_bytes);
  if (there != sent)
    return refuse(call, MG_LINK_ERR_TRANSFER, there, sent);
  int err = mg_session_take_plan(s, s->load_bytes);
  if (err != MG_OK)
    return refuse_by_plan(s, call, err);
  mg_put_u32(call->reply, s->ctx.plan->plan_crc);
  mg_put_u32(call->reply + 4, s->ctx.bytes[MG_ARENA]);
  mg_put_u32(call->reply + 8, s->ctx.bytes[MG_STATE]);
  mg_put_u32(call->reply + 12, s->ctx.bytes[MG_IO]);
  mg_put_u32(call->reply + 16, ahead_bytes(s));
  call->reply_bytes = 20;
  return MG_OK;
}

// ---- samples ------------------------------------------------------------------------------------------------------------

static void put_sample(const struct mg_ctx *ctx, uint32_t offset, const uint8_t *bytes, uint32_t n) {
  uint32_t sample_bytes = (uint32_t)mg_sample_bytes(ctx);
  uint32_t first = offset < sample_bytes ? sample_bytes - offset : 0;
  first = first < n ? first : n;
  if (first != 0)
    memcpy(mg_sample(ctx) + offset, bytes, first);
  if (first != n)
    memcpy(mg_target(ctx) + (offset + first - sample_bytes), bytes + first, n - first);
}

static int sample(struct mg_session *s, struct mg_link_call *call) {
  uint32_t offset = mg_get_u32(call->body);
  uint32_t n = call->body_bytes - 4;
  uint32_t bytes = line_bytes(&s->ctx);
  uint32_t expected = offset == 0 ? 0 : s->sample_at;
  s->sample_at = 0;
  if (offset != expected)
    return refuse(call, MG_LINK_ERR_ORDER, offset, expected);
  if (n > bytes - offset)
    return refuse(call, MG_LINK_ERR_RANGE, offset + n, bytes);
  if (s->ahead != NULL)
    memcpy(s->ahead + offset, call->body + 4, n);
  else
    put_sample(&s->ctx, offset, call->body + 4, n);
  s->sample_at = offset + n;
  return MG_OK;
}

// The step may write over the sample: the next one needs another.
static int use_sample(struct mg_session *s, struct mg_link_call *call, uint32_t bytes) {
  if (s->sample_at < bytes)
    return refuse(call, MG_LINK_ERR_SAMPLE, s->sample_at, bytes);
  if (s->ahead != NULL)
    put_sample(&s->ctx, 0, s->ahead, s->sample_at);
  s->sample_at = 0;
  return MG_OK;
}

static void trace_step(void *user, uint32_t index, const struct mg_step *step) {
  struct mg_session *s = user;
  if (index < s->trace_steps)
    s->trace[index] = mg_outputs_crc(&s->ctx, step);
}

// The stopwatch of the whole command is lost to it: TRAIN and PREDICT then reply the ticks behind the last step.
static void profile_step(void *user, uint32_t index, const struct mg_step *step) {
  uint64_t ticks = mg_port_timer_stop();
  struct mg_session *s = user;
  (void)step;
  if (index < s->trace_steps)
    s->trace[index] = ticks < UINT32_MAX ? (uint32_t)ticks : UINT32_MAX;
  mg_port_timer_start();
}

static void trace_begin(struct mg_session *s) {
  if (s->trace != NULL)
    memset(s->trace, 0, s->trace_steps * sizeof *s->trace);
}

static void put_result(struct mg_link_call *call, const struct mg_result *result, uint64_t ticks) {
  mg_put_f32(call->reply, result->loss);
  mg_put_f32(call->reply + 4, result->peak);
  mg_put_u32(call->reply + 8, (uint32_t)result->argmax);
  mg_put_u32(call->reply + 12, result->skipped);
  mg_put_u64(call->reply + 16, ticks);
  call->reply_bytes = 24;
}

static int train(struct mg_session *s, struct mg_link_call *call) {
  int err = use_sample(s, call, line_bytes(&s->ctx));
  if (err != MG_OK)
    return err;
  trace_begin(s);
  const struct mg_result *result;
  mg_port_hold(true);
  mg_port_timer_start();
  err = mg_train(&s->ctx, mg_get_u16(call->body), mg_get_f32(call->body + 4), mg_get_f32(call->body + 8), &result);
  uint64_t ticks = mg_port_timer_stop();
  mg_port_hold(false);
  if (err != MG_OK)
    return refuse_by_plan(s, call, err);
  s->changes++;
  put_result(call, result, ticks);
  return MG_OK;
}

// What a sample that travels meanwhile costs does not count, save the interrupts.
static void between_steps(void *user, uint32_t index, const struct mg_step *step) {
  struct mg_session *s = user;
  (void)index;
  (void)step;
  s->step.ticks += mg_port_timer_stop();
  s->between(s);
  mg_port_timer_start();
}

static int start(struct mg_session *s, struct mg_link_call *call) {
  int err = use_sample(s, call, line_bytes(&s->ctx));
  if (err != MG_OK)
    return err;
  s->step = (struct mg_link_step){
      .progress = MG_LINK_BEGUN,
      .label = mg_get_u16(call->body),
      .lr = mg_get_f32(call->body + 4),
      .skip = mg_get_f32(call->body + 8),
  };
  return MG_OK;
}

void mg_session_compute(struct mg_session *s, void (*between)(struct mg_session *s)) {
  struct mg_link_step *step = &s->step;
  step->progress = MG_LINK_RUNNING;
  trace_begin(s);
  s->between = between;
  if (s->ahead != NULL) {
    s->ctx.user = s;
    s->ctx.after = between_steps;
  }
  mg_port_timer_start();
  int err = mg_train(&s->ctx, step->label, step->lr, step->skip, &step->result);
  step->ticks += mg_port_timer_stop();
  if (s->ahead != NULL)
    s->ctx.after = NULL;
  if (err == MG_OK)
    s->changes++;
  else
    step->fault = s->ctx.fault;
  step->progress = MG_LINK_DONE;
}

static int result(struct mg_session *s, struct mg_link_call *call) {
  if (s->step.progress != MG_LINK_DONE)
    return refuse(call, MG_LINK_ERR_RESULT, 0, 0);
  s->step.progress = MG_LINK_IDLE;
  call->fault = s->step.fault;
  if (call->fault.code == MG_OK)
    put_result(call, s->step.result, s->step.ticks);
  return call->fault.code;
}

static uint32_t first_maximum(const int8_t *v, uint32_t n) {
  uint32_t best = 0;
  for (uint32_t i = 1; i < n; i++)
    if (v[i] > v[best])
      best = i;
  return best;
}

static int predict(struct mg_session *s, struct mg_link_call *call) {
  int err = use_sample(s, call, (uint32_t)mg_sample_bytes(&s->ctx));
  if (err != MG_OK)
    return err;
  trace_begin(s);
  mg_port_hold(true);
  mg_port_timer_start();
  mg_predict(&s->ctx);
  uint64_t ticks = mg_port_timer_stop();
  mg_port_hold(false);
  const int8_t *output = mg_output(&s->ctx);
  uint32_t bytes = (uint32_t)mg_output_bytes(&s->ctx);
  mg_put_u32(call->reply, first_maximum(output, bytes));
  mg_put_u32(call->reply + 4, bytes);
  mg_put_u32(call->reply + 8, (uint32_t)((const uint8_t *)output - s->ctx.base[MG_IO]));
  mg_put_u32(call->reply + 12, 0);
  mg_put_u64(call->reply + 16, ticks);
  call->reply_bytes = 24;
  if (bytes <= MG_LINK_OUTPUT_BYTES) {
    memcpy(call->reply + 24, output, bytes);
    call->reply_bytes += bytes;
  }
  return MG_OK;
}

static int commit(struct mg_session *s, struct mg_link_call *call) {
  trace_begin(s);
  mg_port_hold(true);
  mg_port_timer_start();
  mg_commit(&s->ctx);
  mg_put_u64(call->reply, mg_port_timer_stop());
  mg_port_hold(false);
  s->changes++;
  call->reply_bytes = 8;
  return MG_OK;
}

// ---- memory -------------------------------------------------------------------------------------------------------------

static int read(struct mg_session *s, struct mg_link_call *call) {
  uint32_t region = call->body[0];
  uint32_t offset = mg_get_u32(call->body + 4);
  uint32_t n = mg_get_u32(call->body + 8);
  if (region > MG_REGIONS)
    return refuse(call, MG_LINK_ERR_REGION, region, MG_REGIONS + 1);
  if (region == MG_REGIONS && s->trace == NULL)
    return refuse(call, MG_LINK_ERR_NO_TRACE, 0, 0);
  if (n > MG_LINK_BODY_BYTES)
    return refuse(call, MG_LINK_ERR_LENGTH, n, MG_LINK_BODY_BYTES);
  uint32_t bytes = region == MG_REGIONS ? s->trace_steps * (uint32_t)sizeof *s->trace : s->ctx.bytes[region];
  if (offset > bytes || n > bytes - offset)
    return refuse(call, MG_LINK_ERR_RANGE, offset > bytes ? offset : offset + n, bytes);
  const uint8_t *base = region == MG_REGIONS ? (const uint8_t *)s->trace : s->ctx.base[region];
  memcpy(call->reply, base + offset, n);
  call->reply_bytes = n;
  return MG_OK;
}

static int write_state(struct mg_session *s, struct mg_link_call *call) {
  uint32_t offset = mg_get_u32(call->body);
  uint32_t n = call->body_bytes - 4;
  size_t bytes;
  uint8_t *state = mg_state(&s->ctx, &bytes);
  if (offset > bytes || n > bytes - offset)
    return refuse(call, MG_LINK_ERR_RANGE, offset > bytes ? offset : offset + n, (uint32_t)bytes);
  memcpy(state + offset, call->body + 4, n);
  begin_state(s);
  return MG_OK;
}

static int reset(struct mg_session *s, struct mg_link_call *call) {
  (void)call;
  mg_reset(&s->ctx);
  begin_plan(s);
  return MG_OK;
}

static int trace(struct mg_session *s, struct mg_link_call *call) {
  trace_off(s);
  if (call->body[0] == MG_LINK_TRACE_OFF)
    return MG_OK;
  if (call->body[0] > MG_LINK_TRACE_TICKS)
    return refuse(call, MG_ERR_ARG, call->body[0], MG_LINK_TRACE_TICKS);
  struct mg_port_pool pool = mg_port_pool();
  size_t used = plan_memory_bytes(s);
  uint32_t steps = steps_of(&s->ctx);
  size_t need = used + steps * sizeof *s->trace;
  if (need > pool.bytes)
    return refuse(call, MG_ERR_NOMEM, (uint32_t)need, (uint32_t)pool.bytes);
  s->trace = (uint32_t *)(void *)(pool.base + used);
  s->trace_steps = steps;
  place_ahead(s);
  trace_begin(s);
  s->ctx.user = s;
  s->ctx.after = call->body[0] == MG_LINK_TRACE_TICKS ? profile_step : trace_step;
  return MG_OK;
}

// ---- checkpoints --------------------------------------------------------------------------------------------------------

void mg_session_wake(struct mg_session *s) {
  struct mg_store store = mg_port_store();
  if (mg_restore(&s->ctx, &store, &s->restored) != MG_OK)
    s->restored = 0;
}

static int save(struct mg_session *s, struct mg_link_call *call) {
  struct mg_store store = mg_port_store();
  uint32_t sequence;
  int err = mg_save(&s->ctx, &store, &sequence);
  if (err != MG_OK)
    return refuse_by_plan(s, call, err);
  mg_put_u32(call->reply, sequence);
  call->reply_bytes = 4;
  return MG_OK;
}

static int restore(struct mg_session *s, struct mg_link_call *call) {
  struct mg_store store = mg_port_store();
  uint32_t sequence;
  int err = mg_restore(&s->ctx, &store, &sequence);
  if (err == MG_OK || err == MG_ERR_FLASH) // which has reset STATE
    begin_state(s);
  if (err != MG_OK)
    return refuse_by_plan(s, call, err);
  mg_put_u32(call->reply, sequence);
  call->reply_bytes = 4;
  return MG_OK;
}

static int checkpoints(struct mg_session *s, struct mg_link_call *call) {
  struct mg_store store = mg_port_store();
  mg_put_u32(call->reply, store.slot_bytes);
  mg_put_u32(call->reply + 4, s->restored);
  uint8_t *at = call->reply + 8;
  for (uint32_t slot = 0; slot < MG_STORE_SLOTS; slot++, at += 20) {
    struct mg_checkpoint found = {0};
    mg_put_u32(at, mg_checkpoint_at(&store, slot, &found));
    mg_put_u32(at + 4, found.sequence);
    mg_put_u32(at + 8, found.plan_crc);
    mg_put_u32(at + 12, found.model_hash);
    mg_put_u32(at + 16, found.state_bytes);
  }
  call->reply_bytes = 8 + MG_STORE_SLOTS * 20;
  return MG_OK;
}

static int restart(struct mg_session *s, struct mg_link_call *call) {
  (void)call;
  s->restart = true;
  return MG_OK;
}

// ---- figures ------------------------------------------------------------------------------------------------------------

static uint32_t arena_touched_bytes(const struct mg_ctx *ctx) {
  uint32_t n = ctx->bytes[MG_ARENA];
  while (n != 0 && ctx->base[MG_ARENA][n - 1] == MG_LINK_PAINT)
    n--;
  return n;
}

static int stats(struct mg_session *s, struct mg_link_call *call) {
  struct mg_port_usage usage = mg_port_usage();
  size_t used = s->loaded ? plan_memory_bytes(s) + s->trace_steps * sizeof *s->trace : 0;
  mg_put_u32(call->reply, usage.stack_peak_bytes);
  mg_put_u32(call->reply + 4, MG_STACK_BYTES);
  mg_put_u32(call->reply + 8, s->loaded ? arena_touched_bytes(&s->ctx) : 0);
  mg_put_u32(call->reply + 12, (uint32_t)used);
  mg_put_u32(call->reply + 16, usage.static_ram_bytes);
  mg_put_u32(call->reply + 20, usage.firmware_bytes);
  mg_put_u32(call->reply + 24, usage.rx_overruns);
  mg_put_u32(call->reply + 28, s->damaged_frames);
  call->reply_bytes = 32;
  return MG_OK;
}

// Each rate is tried before the reply, which must go out at the old one: the host is silent until then.
static int baud(struct mg_session *s, struct mg_link_call *call) {
  uint32_t rate = mg_get_u32(call->body);
  if (rate != s->baud) {
    if (rate == 0 || !mg_port_baud(rate))
      return refuse(call, MG_LINK_ERR_BAUD, rate, s->baud);
    (void)mg_port_baud(s->baud);
    s->next_baud = rate;
  }
  memcpy(call->reply, call->body, call->body_bytes);
  call->reply_bytes = call->body_bytes;
  return MG_OK;
}

static int bye(struct mg_session *s, struct mg_link_call *call) {
  (void)call;
  trace_off(s);
  s->next_baud = s->baud != MG_LINK_START_BAUD ? MG_LINK_START_BAUD : 0;
  return MG_OK;
}

// ---- the border ---------------------------------------------------------------------------------------------------------

static uint32_t put_string(uint8_t *at, const char *text) {
  uint32_t n = (uint32_t)strlen(text);
  at[0] = (uint8_t)n;
  memcpy(at + 1, text, n);
  return n + 1;
}

// The unit of a tick, or none where the timer does not move, whatever board.toml says of it.
static uint8_t tick_unit(void) {
  for (uint32_t work = 64; work <= 4096; work *= 4) {
    mg_port_timer_start();
    for (volatile uint32_t i = 0; i < work; i++) {
    }
    if (mg_port_timer_stop() != 0)
      return MG_TICK_UNIT;
  }
  return MG_PORT_TICK_NONE;
}

void mg_session_caps(struct mg_session *s, struct mg_link_call *call) {
  uint8_t *r = call->reply;
  mg_put_u32(r, s->nonce);
  mg_put_u16(r + 4, MG_LINK_PROTOCOL);
  mg_put_u16(r + 6, MG_PLAN_VERSION);
  mg_put_u32(r + 8, mg_ops_hash());
  memset(r + 12, 0, 32);
  for (uint16_t code = 0; code < 256; code++)
    if (mg_kernel_linked(code))
      r[12 + code / 8] |= (uint8_t)(1u << (code % 8));
  mg_put_u32(r + 44, (uint32_t)mg_port_pool().bytes);
  mg_put_u32(r + 48, (uint32_t)mg_port_slot().bytes);
  mg_put_u16(r + 52, MG_LINK_BODY_BYTES);
  r[54] = MG_LINK_WINDOW_FRAMES;
  r[55] = tick_unit();
  mg_put_u32(r + 56, MG_RX_RING_BYTES - MG_LINK_SYNC_RESERVE_BYTES);
  mg_put_u32(r + 60, MG_TICK_MUL);
  mg_put_u32(r + 64, MG_TICK_DIV);
  mg_put_u32(r + 68, s->loaded ? s->ctx.plan->plan_crc : 0);
  mg_put_u32(r + 72, mg_port_store().slot_bytes);
  mg_put_u32(r + 76, ahead_bytes(s));
  mg_put_u32(r + 80, s->state_id);
  mg_put_u32(r + 84, s->changes);
  uint32_t n = 88;
  n += put_string(r + n, MG_BOARD_NAME);
  n += put_string(r + n, MG_FIRMWARE_VERSION);
  call->reply_bytes = n;
}

int mg_session_execute(struct mg_session *s, struct mg_link_call *call) {
  static const struct {
    command *run;
    uint16_t min_bytes, max_bytes;
    uint8_t type;
    bool needs_plan;
  } commands[] = {
      {load_begin, 4, 4, MG_LINK_LOAD_BEGIN, false},
      {load_data, 5, MG_LINK_BODY_BYTES, MG_LINK_LOAD_DATA, false},
      {load_end, 4, 4, MG_LINK_LOAD_END, false},
      {sample, 5, MG_LINK_BODY_BYTES, MG_LINK_SAMPLE, true},
      {train, 12, 12, MG_LINK_TRAIN, true},
      {predict, 0, 0, MG_LINK_PREDICT, true},
      {commit, 0, 0, MG_LINK_COMMIT, true},
      {start, 12, 12, MG_LINK_START, true},
      {result, 0, 0, MG_LINK_RESULT, true},
      {read, 12, 12, MG_LINK_READ, true},
      {write_state, 5, MG_LINK_BODY_BYTES, MG_LINK_WRITE_STATE, true},
      {reset, 0, 0, MG_LINK_RESET, true},
      {trace, 1, 1, MG_LINK_TRACE, true},
      {stats, 0, 0, MG_LINK_STATS, false},
      {save, 0, 0, MG_LINK_SAVE, true},
      {restore, 0, 0, MG_LINK_RESTORE, true},
      {checkpoints, 0, 0, MG_LINK_CHECKPOINTS, false},
      {restart, 0, 0, MG_LINK_RESTART, false},
      {baud, 4, MG_LINK_BODY_BYTES, MG_LINK_BAUD, false},
      {bye, 0, 0, MG_LINK_BYE, false},
  };
  for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
    if (commands[i].type != call->type)
      continue;
    uint32_t n = call->body_bytes;
    if (n < commands[i].min_bytes || n > commands[i].max_bytes)
      return refuse(call, MG_LINK_ERR_LENGTH, n, n < commands[i].min_bytes ? commands[i].min_bytes : commands[i].max_bytes);
    if (commands[i].needs_plan && !s->loaded)
      return refuse(call, MG_LINK_ERR_NO_PLAN, call->type, 0);
    return commands[i].run(s, call);
  }
  return refuse(call, MG_LINK_ERR_TYPE, call->type, 0);
}
