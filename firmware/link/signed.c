// signed.c -- HMAC-SHA-256 behind a plan.
#include "signed.h"

#include "plan.h"
#include "sha256.h"
#include "wire.h"

bool mg_is_signed(const uint8_t key[32], const uint8_t *block, size_t n) {
  if (n < sizeof(struct mg_header) + MG_SHA256_BYTES)
    return false;
  uint32_t plan_bytes = mg_get_u32(block + offsetof(struct mg_header, plan_bytes));
  if (plan_bytes > n - MG_SHA256_BYTES)
    return false;
  uint8_t tag[MG_SHA256_BYTES], differs = 0;
  mg_hmac_sha256(key, block, plan_bytes, tag);
  for (unsigned i = 0; i < MG_SHA256_BYTES; i++)
    differs |= tag[i] ^ block[plan_bytes + i];
  return differs == 0;
}
