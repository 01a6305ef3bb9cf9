// sha256.c -- FIPS 180-4 sections 4.1.2, 5.1.1 and 6.2.2; HMAC: RFC 2104 section 2. Small rather than fast: the message schedule is kept
// in 16 words. Nothing branches or indexes by the key or the data.
#include "sha256.h"

#include <string.h>

static const uint32_t k[64] = {
  0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be,
  0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa,
  0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85,
  0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3,
  0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f,
  0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t rotated(uint32_t x, unsigned n) {
  return x >> n | x << (32 - n);
}

static uint32_t big_endian(const uint8_t *p) {
  return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

// Word t of the schedule, which takes the place of word t - 16.
static uint32_t scheduled(uint32_t w[16], unsigned t) {
  uint32_t a = w[(t + 1) % 16], b = w[(t + 14) % 16];
  uint32_t s0 = rotated(a, 7) ^ rotated(a, 18) ^ a >> 3, s1 = rotated(b, 17) ^ rotated(b, 19) ^ b >> 10;
  return w[t % 16] += s0 + w[(t + 9) % 16] + s1;
}

static void compress(uint32_t h[8], const uint8_t *block) {
  uint32_t w[16], v[8];
  for (unsigned t = 0; t < 16; t++)
    w[t] = big_endian(block + 4 * t);
  memcpy(v, h, sizeof v);
  for (unsigned t = 0; t < 64; t++) {
    uint32_t e = v[4], a = v[0];
    uint32_t s1 = rotated(e, 6) ^ rotated(e, 11) ^ rotated(e, 25), s0 = rotated(a, 2) ^ rotated(a, 13) ^ rotated(a, 22);
    uint32_t choice = (e & v[5]) ^ (~e & v[6]), majority = (a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]);
    uint32_t t1 = v[7] + s1 + choice + k[t] + (t < 16 ? w[t] : scheduled(w, t));
    memmove(v + 1, v, 7 * sizeof *v);
    v[4] += t1;
    v[0] = t1 + s0 + majority;
  }
  for (unsigned i = 0; i < 8; i++)
    h[i] += v[i];
}

void mg_sha256_begin(struct mg_sha256 *s) {
  static const uint32_t start[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  memcpy(s->h, start, sizeof start);
  s->bytes = 0;
}

void mg_sha256_add(struct mg_sha256 *s, const void *data, size_t n) {
  const uint8_t *at = data;
  while (n != 0) {
    size_t used = (size_t)(s->bytes % MG_SHA256_BLOCK_BYTES), room = MG_SHA256_BLOCK_BYTES - used;
    size_t take = n < room ? n : room;
    memcpy(s->block + used, at, take);
    s->bytes += take;
    if (take == room)
      compress(s->h, s->block);
    at += take;
    n -= take;
  }
}

void mg_sha256_end(struct mg_sha256 *s, uint8_t digest[MG_SHA256_BYTES]) {
  uint64_t bits = s->bytes * 8;
  uint8_t tail[8];
  for (unsigned i = 0; i < 8; i++)
    tail[i] = (uint8_t)(bits >> (56 - 8 * i));
  mg_sha256_add(s, (const uint8_t[]){0x80}, 1);
  while (s->bytes % MG_SHA256_BLOCK_BYTES != MG_SHA256_BLOCK_BYTES - sizeof tail)
    mg_sha256_add(s, (const uint8_t[]){0}, 1);
  mg_sha256_add(s, tail, sizeof tail);
  for (unsigned i = 0; i < MG_SHA256_BYTES; i++)
    digest[i] = (uint8_t)(s->h[i / 4] >> (24 - 8 * (i % 4)));
}

static void begin_padded(struct mg_sha256 *s, const uint8_t *key, uint8_t pad) {
  uint8_t block[MG_SHA256_BLOCK_BYTES];
  memset(block, pad, sizeof block);
  for (unsigned i = 0; i < MG_SHA256_BYTES; i++)
    block[i] ^= key[i];
  mg_sha256_begin(s);
  mg_sha256_add(s, block, sizeof block);
}

void mg_hmac_sha256(const uint8_t key[MG_SHA256_BYTES], const void *data, size_t n, uint8_t tag[MG_SHA256_BYTES]) {
  struct mg_sha256 s;
  begin_padded(&s, key, 0x36);
  mg_sha256_add(&s, data, n);
  mg_sha256_end(&s, tag);
  begin_padded(&s, key, 0x5C);
  mg_sha256_add(&s, tag, MG_SHA256_BYTES);
  mg_sha256_end(&s, tag);
}
