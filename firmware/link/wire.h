// wire.h -- little-endian numbers at any address.
#ifndef MG_WIRE_H
#define MG_WIRE_H

#include <stdint.h>
#include <string.h>

static inline uint16_t mg_get_u16(const uint8_t *p) {
  return (uint16_t)(p[0] | p[1] << 8);
}

static inline uint32_t mg_get_u32(const uint8_t *p) {
  return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static inline float mg_get_f32(const uint8_t *p) {
  uint32_t bits = mg_get_u32(p);
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static inline void mg_put_u16(uint8_t *p, uint16_t v) {
  p[0] = (uint8_t)v;
  p[1] = (uint8_t)(v >> 8);
}

static inline void mg_put_u32(uint8_t *p, uint32_t v) {
  mg_put_u16(p, (uint16_t)v);
  mg_put_u16(p + 2, (uint16_t)(v >> 16));
}

static inline void mg_put_u64(uint8_t *p, uint64_t v) {
  mg_put_u32(p, (uint32_t)v);
  mg_put_u32(p + 4, (uint32_t)(v >> 32));
}

static inline void mg_put_f32(uint8_t *p, float v) {
  uint32_t bits;
  memcpy(&bits, &v, sizeof bits);
  mg_put_u32(p, bits);
}

#endif
