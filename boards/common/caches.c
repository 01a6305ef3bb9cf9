// caches.c -- the caches of the Cortex-M7. Registers and the order of the steps: Armv7-M ARM (DDI 0403) sections B2.2.7, cache
// maintenance operations, and B4.8, CCSIDR; Cortex-M7 TRM (DDI 0489) section 4.
#include "caches.h"

#include "cortexm.h"

#define SCB_CCR REG(0xE000ED14)
#define CCSIDR REG(0xE000ED80)
#define CSSELR REG(0xE000ED84)
#define ICIALLU REG(0xE000EF50)
#define DCIMVAC REG(0xE000EF5C)
#define DCISW REG(0xE000EF60)

enum { CCR_DC = 1 << 16, CCR_IC = 1 << 17, LINE_BYTES = 32, LINE_SHIFT = 5 };

static void barrier(void) {
  __asm volatile("dsb\n\tisb" ::: "memory");
}

void board_caches_on(void) {
  ICIALLU = 0;
  CSSELR = 0; // the data cache of level 1
  barrier();
  uint32_t size = CCSIDR, ways = (size >> 3 & 0x3FF) + 1, sets = (size >> 13 & 0x7FFF) + 1;
  uint32_t way_shift = ways > 1 ? (uint32_t)__builtin_clz(ways - 1) : 0;
  for (uint32_t set = 0; set < sets; set++)
    for (uint32_t way = 0; way < ways; way++)
      DCISW = way << way_shift | set << LINE_SHIFT;
  barrier();
  SCB_CCR |= CCR_DC | CCR_IC;
  barrier();
}

// Flash is write-through by default (Armv7-M ARM, B3.1): no line of it holds what memory does not, so none is lost.
void board_caches_forget(const void *start, size_t n) {
  uintptr_t end = (uintptr_t)start + n;
  barrier();
  for (uintptr_t line = (uintptr_t)start & ~(uintptr_t)(LINE_BYTES - 1); line < end; line += LINE_BYTES)
    DCIMVAC = (uint32_t)line;
  barrier();
}
