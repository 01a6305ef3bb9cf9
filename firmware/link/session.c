// session.c -- sequence, repeats and replies: the device's half of go-back-N (SPEC.md section 4.2).
#include "session.h"

#include "mcugrad_port.h"
#include "wire.h"

#include <string.h>

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
  s->loaded = mg_session_take_plan(s, (uint32_t)mg_port_slot().bytes) == MG_OK;
}

void mg_session_poll(struct mg_session *s) {
  uint8_t bytes[64];
  size_t n;
  while ((n = mg_port_read(bytes, sizeof bytes)) != 0) {
    for (size_t i = 0; i < n; i++) {
      int32_t got = mg_frame_push(&s->decoder, bytes[i]);
      if (got > 0) {
        on_frame(s, (uint32_t)got);
      } else if (got < 0) {
        s->damaged_frames++;
        nak_once(s);
      }
    }
  }
}
