// caches.h -- the caches of the Cortex-M7.
#ifndef BOARD_CACHES_H
#define BOARD_CACHES_H

#include <stddef.h>

// Both on. No DMA runs on these boards, so that RAM needs no further care.
void board_caches_on(void);

// Forget what was read from flash at these addresses, after it was erased or programmed.
void board_caches_forget(const void *start, size_t n);

#endif
