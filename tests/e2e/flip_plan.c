// flip_plan.c -- a real plan with one bit wrong, for every bit of its header and its steps. Build with ASan and UBSan.
//
//   flip_plan PLAN MASK
//
// At each byte the bits of MASK are flipped, one at a time, the CRC is made right again, and where mg_init accepts the plan
// it predicts and trains, also from a STATE and IO full of nonsense. Plan and memory are allocations of exactly the size that
// mg_init is told, so AddressSanitizer sees the first byte outside. Prints how many plans were tried and how many were accepted.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mcugrad.h"

enum { CRC_AT = 16, CRC_FROM = 20, STEPS_AT = 48, STEPS_BYTES_AT = 72, MEMORY_LIMIT = 1 << 20 };

static uint8_t *plan;
static size_t plan_bytes;
static unsigned accepted;

static uint32_t word_at(size_t at) {
  uint32_t v;
  memcpy(&v, plan + at, sizeof v);
  return v;
}

static void scramble(uint8_t *bytes, size_t n) {
  static uint32_t seed = 1;
  for (size_t k = 0; k < n; k++) {
    seed = seed * 1664525u + 1013904223u;
    bytes[k] = (uint8_t)(seed >> 24);
  }
}

static void use(struct mg_ctx *net) {
  scramble((uint8_t *)mg_sample(net), mg_sample_bytes(net));
  mg_predict(net);
  const struct mg_result *result;
  for (uint16_t label = 0; label < 2; label++)
    if (mg_train(net, label, 0.05f, 0.0f, &result) != MG_OK)
      break;
  size_t n;
  uint8_t *state = mg_state(net, &n);
  scramble(state, n);
  scramble(net->base[MG_IO], net->bytes[MG_IO]);
  mg_predict(net);
  if (mg_train(net, 0, 1e30f, 0.0f, &result) != MG_OK)
    return;
}

static void try(void) {
  uint32_t crc = mg_crc32(0, plan + CRC_FROM, plan_bytes - CRC_FROM);
  memcpy(plan + CRC_AT, &crc, sizeof crc);
  size_t bytes = mg_memory_bytes(plan, plan_bytes);
  if (bytes == 0 || bytes > MEMORY_LIMIT)
    bytes = 16;
  uint8_t *memory = aligned_alloc(16, (bytes + 15) & ~(size_t)15);
  struct mg_ctx net;
  if (memory != NULL && mg_init(&net, plan, plan_bytes, memory, bytes) == MG_OK) {
    accepted++;
    use(&net);
  }
  free(memory);
}

int main(int count, char **words) {
  FILE *file = count == 3 ? fopen(words[1], "rb") : NULL;
  if (file == NULL || fseek(file, 0, SEEK_END) != 0)
    return EXIT_FAILURE;
  plan_bytes = (size_t)ftell(file);
  rewind(file);
  plan = aligned_alloc(16, plan_bytes);
  if (plan == NULL || fread(plan, 1, plan_bytes, file) != plan_bytes)
    return EXIT_FAILURE;
  const size_t end = word_at(STEPS_AT) + word_at(STEPS_BYTES_AT);
  const unsigned mask = (unsigned)strtoul(words[2], NULL, 0);
  unsigned tried = 0;
  for (size_t at = 0; at < end; at++)
    for (unsigned bit = 0; bit < 8; bit++)
      if (mask >> bit & 1) {
        plan[at] ^= (uint8_t)(1u << bit);
        try();
        plan[at] ^= (uint8_t)(1u << bit);
        tried++;
      }
  printf("%u %u\n", tried, accepted);
  return EXIT_SUCCESS;
}
