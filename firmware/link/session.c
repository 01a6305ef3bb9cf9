// session.c -- sequence, repeats and replies: the device's half of go-back-N (SPEC.md section 4.2).
#include "session.h"

#include "mcugrad_port.h"
#include "wire.h"

#include <string.h>

// A board whose line has one rate, and one whose line cannot wait, leave these out.
__attribute__((weak)) bool mg_port_baud(uint32_t rate) {
  (void)rate;
  return false;
}

__attribute__((weak)) void mg_port_hold(bool on) {
  (void)on;
}

static void to_port(void *port, const uint8_t *bytes, uint32_t n) {
  (void)port;
  mg_port_write(bytes, n);
}

static void send(uint8_t *frame, uint32_t n) {
  mg_frame_send(frame, n, to_port, NULL);
}

// A NAK starts with a delimiter: what stood half-written on the line before a reset must not swallow it.
static void send_nak(const struct mg_session *s, uint8_t token) {
  uint8_t frame[MG_FRAME_OVERHEAD_BYTES + 6] = {MG_LINK_NAK, s->expected, s->expected, token};
  mg_put_u32(frame + 4, s->open ? s->nonce : 0);
  mg_port_write((const uint8_t[]){0}, 1);
  send(frame, MG_FRAME_HEAD_BYTES + 6);
}

static void nak_once(struct mg_session *s) {
  if (s->open && !s->nak_sent)
    send_nak(s, 0);
  s->nak_sent = true;
}

static void put_fault(struct mg_link_call *call) {
  mg_put_u32(call->reply, (uint32_t)call->fault.code);
  mg_put_u32(call->reply + 4, call->fault.step);
  mg_put_u32(call->reply + 8, call->fault.value);
  mg_put_u32(call->reply + 12, call->fault.limit);
  call->reply_bytes = 16;
}

static void reply(struct mg_session *s, uint8_t seq, struct mg_link_call *call, int err) {
  s->tx[0] = (uint8_t)(call->type | MG_LINK_REPLY);
  s->tx[1] = seq;
  if (err != MG_OK) {
    s->tx[0] = MG_LINK_ERR;
    put_fault(call);
  }
  s->tx_bytes = MG_FRAME_HEAD_BYTES + call->reply_bytes;
  send(s->tx, s->tx_bytes);
}

static void keep(struct mg_session *s, uint8_t seq) {
  struct mg_link_kept *kept = &s->kept[seq % MG_LINK_WINDOW_FRAMES];
  bool fits = s->tx_bytes <= MG_FRAME_HEAD_BYTES + MG_LINK_KEPT_BODY_BYTES;
  kept->seq = seq;
  kept->n = fits ? (uint8_t)s->tx_bytes : 0;
  memcpy(kept->frame, s->tx, kept->n);
}

static void repeat(struct mg_session *s, uint8_t seq) {
  struct mg_link_kept *kept = &s->kept[seq % MG_LINK_WINDOW_FRAMES];
  if (seq == (uint8_t)(s->expected - 1)) {
    send(s->tx, s->tx_bytes);
  } else if (kept->n != 0 && kept->seq == seq) {
    send(kept->frame, kept->n);
  } else {
    uint8_t frame[MG_FRAME_OVERHEAD_BYTES + 16] = {MG_LINK_ERR, seq};
    struct mg_link_call call = {.reply = frame + MG_FRAME_HEAD_BYTES, .fault = {MG_LINK_ERR_REPLAY, MG_NO_STEP, seq, s->expected}};
    put_fault(&call);
    send(frame, MG_FRAME_HEAD_BYTES + call.reply_bytes);
  }
}

static void set_baud(struct mg_session *s, uint32_t rate) {
  (void)mg_port_baud(rate);
  s->baud = rate;
  s->lost_bytes = 0;
  mg_frame_decoder_init(&s->decoder, s->rx, sizeof s->rx);
}

static void on_hello(struct mg_session *s, struct mg_link_call *call) {
  if (call->body_bytes != 6)
    return;
  uint32_t nonce = mg_get_u32(call->body);
  uint16_t protocol = mg_get_u16(call->body + 4);
  if (s->open && nonce == s->nonce) {
    if (s->expected == 1)
      send(s->tx, s->tx_bytes);
    return;
  }
  mg_port_write((const uint8_t[]){0}, 1);
  if (protocol != MG_LINK_PROTOCOL) {
    call->fault = (struct mg_fault){MG_LINK_ERR_PROTOCOL, MG_NO_STEP, protocol, MG_LINK_PROTOCOL};
    reply(s, 0, call, MG_LINK_ERR_PROTOCOL);
    return;
  }
  s->open = true;
  s->nonce = nonce;
  s->expected = 1;
  s->nak_sent = false;
  memset(s->kept, 0, sizeof s->kept);
  mg_session_caps(s, call);
  reply(s, 0, call, MG_OK);
}

static void on_command(struct mg_session *s, uint8_t seq, struct mg_link_call *call) {
  if (!s->open) {
    call->fault = (struct mg_fault){MG_LINK_ERR_SESSION, MG_NO_STEP, call->type, 0};
    reply(s, seq, call, MG_LINK_ERR_SESSION);
  } else if (seq == s->expected) {
    s->nak_sent = false;
    s->expected++;
    int err = mg_session_execute(s, call);
    reply(s, seq, call, err);
    keep(s, seq);
    if (s->next_baud != 0)
      set_baud(s, s->next_baud);
    s->next_baud = 0;
  } else if ((uint8_t)(s->expected - seq) <= MG_LINK_WINDOW_FRAMES) {
    repeat(s, seq);
  } else {
    nak_once(s);
  }
}

static void on_frame(struct mg_session *s, uint32_t n) {
  struct mg_link_call call = {
      .type = s->rx[0],
      .body = s->rx + MG_FRAME_HEAD_BYTES,
      .body_bytes = n - MG_FRAME_HEAD_BYTES,
      .reply = s->tx + MG_FRAME_HEAD_BYTES,
  };
  if (call.type == MG_LINK_HELLO)
    on_hello(s, &call);
  else if (call.type != MG_LINK_SYNC)
    on_command(s, s->rx[1], &call);
  else if (call.body_bytes == 1)
    send_nak(s, call.body[0]);
}

void mg_session_init(struct mg_session *s) {
  memset(s, 0, sizeof *s);
  mg_frame_decoder_init(&s->decoder, s->rx, sizeof s->rx);
  s->baud = MG_LINK_START_BAUD;
  s->loaded = mg_session_take_plan(s, (uint32_t)mg_port_slot().bytes) == MG_OK;
  if (s->loaded)
    mg_session_wake(s);
}

static bool next_byte(struct mg_session *s, uint8_t *byte) {
  if (s->chunk_at == s->chunk_bytes) {
    s->chunk_at = 0;
    s->chunk_bytes = (uint8_t)mg_port_read(s->chunk, sizeof s->chunk);
    if (s->chunk_bytes == 0)
      return false;
  }
  *byte = s->chunk[s->chunk_at++];
  return true;
}

// The host has lost this rate, or never had it: its commands come at the one that all lines start with.
static void count_lost(struct mg_session *s) {
  if (s->baud != MG_LINK_START_BAUD && ++s->lost_bytes >= MG_LINK_LOST_BYTES)
    set_baud(s, MG_LINK_START_BAUD);
}

static void execute(struct mg_session *s, uint32_t n) {
  on_frame(s, n);
  if (s->restart) {
    if (s->baud != MG_LINK_START_BAUD)
      set_baud(s, MG_LINK_START_BAUD);
    mg_session_init(s);
  }
}

// Execute what has arrived, up to a START. While its step is under way only SAMPLE is executed: the first other frame waits.
static void take(struct mg_session *s) {
  uint8_t byte;
  while (s->waiting == 0 && s->step.progress != MG_LINK_BEGUN && next_byte(s, &byte)) {
    count_lost(s);
    int32_t got = mg_frame_push(&s->decoder, byte);
    if (got > 0) {
      s->lost_bytes = 0;
      if (s->step.progress == MG_LINK_RUNNING && s->rx[0] != MG_LINK_SAMPLE)
        s->waiting = (uint32_t)got;
      else
        execute(s, (uint32_t)got);
    } else if (got < 0) {
      s->damaged_frames++;
      nak_once(s);
    }
  }
}

void mg_session_poll(struct mg_session *s) {
  take(s);
  while (s->step.progress == MG_LINK_BEGUN) {
    mg_session_compute(s, take);
    uint32_t n = s->waiting;
    s->waiting = 0;
    if (n != 0)
      execute(s, n);
    take(s);
  }
}
