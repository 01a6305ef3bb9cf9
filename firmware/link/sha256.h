// sha256.h -- SHA-256 (FIPS 180-4) and HMAC (RFC 2104) over it. Only in firmware that takes signed plans alone.
#ifndef MG_SHA256_H
#define MG_SHA256_H

#include <stddef.h>
#include <stdint.h>

enum { MG_SHA256_BYTES = 32, MG_SHA256_BLOCK_BYTES = 64 };

struct mg_sha256 {
  uint32_t h[8];
  uint64_t bytes;
  uint8_t block[MG_SHA256_BLOCK_BYTES];
};

void mg_sha256_begin(struct mg_sha256 *s);
void mg_sha256_add(struct mg_sha256 *s, const void *data, size_t n);
void mg_sha256_end(struct mg_sha256 *s, uint8_t digest[MG_SHA256_BYTES]);

// HMAC-SHA-256 with a key of 32 bytes.
void mg_hmac_sha256(const uint8_t key[MG_SHA256_BYTES], const void *data, size_t n, uint8_t tag[MG_SHA256_BYTES]);

#endif
