// cycles.c -- a stopwatch of core clock cycles: the cycle counter of the DWT, 32 bits, widened by SysTick.
//
// Registers: Armv7-M ARM (DDI 0403) section C1.8, DWT, and C1.6.5, DEMCR. The lock of the Cortex-M7 (CoreSight Architecture
// Specification, LAR) is no register of the M4, which ignores the write. Where the counter is missing, as in some emulators, it
// reads 0, every interval is 0 ticks, and HELLO then says that the board has no timer.
#include "cortexm.h"

#define DEMCR REG(0xE000EDFC)
#define DWT_CTRL REG(0xE0001000)
#define DWT_CYCCNT REG(0xE0001004)
#define DWT_LAR REG(0xE0001FB0)

enum { DEMCR_TRCENA = 1 << 24, DWT_CYCCNTENA = 1 << 0 };

static struct {
  volatile uint64_t total;
  volatile uint32_t last;
} watch;

static void advance(void) {
  uint32_t now = DWT_CYCCNT;
  watch.total += now - watch.last;
  watch.last = now;
}

// Every 2^24 cycles, so that no wrap of the counter is missed.
void board_systick_handler(void) {
  advance();
}

void mg_port_timer_start(void) {
  DEMCR |= DEMCR_TRCENA;
  DWT_LAR = 0xC5ACCE55;
  DWT_CTRL |= DWT_CYCCNTENA;
  SYST_CSR = 0;
  SYST_RVR = SYSTICK_MAX;
  SYST_CVR = 0;
  watch.total = 0;
  watch.last = DWT_CYCCNT;
  SYST_CSR = 7; // core clock, interrupt, on
}

uint64_t mg_port_timer_stop(void) {
  SYST_CSR = 0;
  __asm volatile("dsb\n\tisb" ::: "memory"); // a tick that is pending is taken here and not inside advance
  advance();
  return watch.total;
}
