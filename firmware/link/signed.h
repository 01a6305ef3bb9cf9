// signed.h -- plans that carry a signature (SPEC.md section 1.1).
#ifndef MG_SIGNED_H
#define MG_SIGNED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Whether a block of n bytes begins with a plan and its signature by `key`. Takes as long for a wrong one as for a right one.
bool mg_is_signed(const uint8_t key[32], const uint8_t *block, size_t n);

#endif
