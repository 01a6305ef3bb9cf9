// frame.h -- bytes on the wire to frames and back. Every byte: SPEC.md section 4.1.
//
// A frame is type u8, seq u8, body, CRC-32 u32 of all before; COBS-encoded, then one zero byte. The caller owns every
// buffer; nothing here keeps state outside the structs below.
#ifndef MG_FRAME_H
#define MG_FRAME_H

#include <stdint.h>

enum {
  MG_FRAME_HEAD_BYTES = 2,     // type, seq
  MG_FRAME_OVERHEAD_BYTES = 6, // head and CRC-32
};

// What mg_frame_push found in a byte. Positive values are the length of a good frame: head and body, without the CRC.
enum {
  MG_FRAME_MORE = 0,      // nothing yet
  MG_FRAME_DAMAGED = -1,  // a frame ended whose code, length or CRC is wrong
  MG_FRAME_OVERSIZE = -2, // a frame ended that did not fit the buffer
};

// An incremental decoder. buf holds the decoded frame after a positive mg_frame_push and until the next one.
struct mg_frame_decoder {
  uint8_t *buf;
  uint32_t capacity_bytes; // largest body + MG_FRAME_OVERHEAD_BYTES
  uint32_t used_bytes;
  uint8_t code;  // COBS code of the current block, 0 before the first
  uint8_t left;  // bytes of the current block still to come
  uint8_t state; // MG_FRAME_MORE, or what the frame will end with
};

typedef void mg_frame_write(void *port, const uint8_t *bytes, uint32_t n);

void mg_frame_decoder_init(struct mg_frame_decoder *d, uint8_t *buf, uint32_t capacity_bytes);

// Feed one byte. Returns MG_FRAME_MORE, the length of a good frame, or one of the negative values above, at the delimiter only.
// Empty frames (two delimiters in a row) are no event.
int32_t mg_frame_push(struct mg_frame_decoder *d, uint8_t byte);

// Encode and write frame[0 .. n), delimiter last. frame must have room for 4 more bytes: the CRC is put there.
void mg_frame_send(uint8_t *frame, uint32_t n, mg_frame_write *write, void *port);

#endif
