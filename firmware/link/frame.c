// frame.c -- COBS (Cheshire and Baker 1999) with CRC-32.
//
// COBS block: a code byte c in 1 … 255, then c - 1 bytes that are not zero; a zero follows implicitly where c < 255 and
// the block is not the last. So zero never occurs inside a frame, and a reader that lost its place finds the next one.
#include "frame.h"

#include "mcugrad.h"
#include "wire.h"

void mg_frame_decoder_init(struct mg_frame_decoder *d, uint8_t *buf, uint32_t capacity_bytes) {
  *d = (struct mg_frame_decoder){.buf = buf, .capacity_bytes = capacity_bytes};
}

static void store(struct mg_frame_decoder *d, uint8_t byte) {
  if (d->used_bytes < d->capacity_bytes)
    d->buf[d->used_bytes++] = byte;
  else
    d->state = (uint8_t)-MG_FRAME_OVERSIZE;
}

static int32_t finish(struct mg_frame_decoder *d) {
  uint32_t n = d->used_bytes;
  int32_t state = -(int32_t)d->state;
  uint8_t left = d->left, code = d->code;
  mg_frame_decoder_init(d, d->buf, d->capacity_bytes);
  if (code == 0)
    return MG_FRAME_MORE;
  if (state != MG_FRAME_MORE)
    return state;
  if (left != 0 || n < MG_FRAME_OVERHEAD_BYTES)
    return MG_FRAME_DAMAGED;
  n -= 4;
  return mg_get_u32(d->buf + n) == mg_crc32(0, d->buf, n) ? (int32_t)n : MG_FRAME_DAMAGED;
}

int32_t mg_frame_push(struct mg_frame_decoder *d, uint8_t byte) {
  if (byte == 0)
    return finish(d);
  if (d->left != 0) {
    d->left--;
    store(d, byte);
    return MG_FRAME_MORE;
  }
  if (d->code != 0 && d->code != 255)
    store(d, 0);
  d->code = byte;
  d->left = (uint8_t)(byte - 1);
  return MG_FRAME_MORE;
}

void mg_frame_send(uint8_t *frame, uint32_t n, mg_frame_write *write, void *port) {
  mg_put_u32(frame + n, mg_crc32(0, frame, n));
  n += 4;
  uint32_t at = 0;
  for (;;) {
    uint32_t run = 0;
    while (at + run < n && run < 254 && frame[at + run] != 0)
      run++;
    uint8_t code = (uint8_t)(run + 1);
    write(port, &code, 1);
    if (run != 0)
      write(port, frame + at, run);
    at += run;
    if (at == n)
      break;
    at += run < 254;
  }
  static const uint8_t delimiter = 0;
  write(port, &delimiter, 1);
}
