// cortexm.h -- between cortexm.c, which every Cortex-M board shares, and the sources that know the chip.
#ifndef BOARD_CORTEXM_H
#define BOARD_CORTEXM_H

#include "mcugrad_port.h"

#define REG(address) (*(volatile uint32_t *)(address))

// System control space: Armv7-M ARM (DDI 0403) sections B3.3 SysTick, B3.4 NVIC, B3.2 SCB; the same registers in the
// Armv8-M ARM (DDI 0553), section D1.2, by name.
#define SYST_CSR REG(0xE000E010)
#define SYST_RVR REG(0xE000E014)
#define SYST_CVR REG(0xE000E018)
#define NVIC_ISER(n) REG(0xE000E100 + 4 * ((n) / 32))
#define NVIC_ICER(n) REG(0xE000E180 + 4 * ((n) / 32))

enum { SYSTICK_MAX = 0xFFFFFF };

// ---- cortexm.c gives ----------------------------------------------------------------------------------------------------

// The interrupt of the line, external interrupt BOARD_LINE_IRQ.
static inline void board_line_irq_on(void) {
  NVIC_ISER(BOARD_LINE_IRQ) = 1u << BOARD_LINE_IRQ % 32;
}

static inline void board_line_irq_off(void) {
  NVIC_ICER(BOARD_LINE_IRQ) = 1u << BOARD_LINE_IRQ % 32;
}

// From the handler of the line: a byte came; a byte was lost before it could be taken.
void board_received(uint8_t byte);
void board_lost(void);

// Wait until (register & mask) == value; false where that has not come after `tries` reads.
static inline bool board_wait(const volatile uint32_t *at, uint32_t mask, uint32_t value, uint32_t tries) {
  while ((*at & mask) != value)
    if (tries-- == 0)
      return false;
  return true;
}

// ---- the chip's sources give --------------------------------------------------------------------------------------------

void board_line_handler(void);
void board_systick_handler(void);

// Flash, at addresses in the plan slot or in the checkpoints. All return 0, or a negative value where the flash failed.
// erase: whole erase blocks from `start` on, at least n bytes. program: `at` is a multiple of 32 and erased; a last part of less
// than 32 bytes is filled up with 0xFF. read: as memcpy; fails where the flash reports a torn word.
int board_flash_erase(uint8_t *start, size_t n);
int board_flash_program(uint8_t *at, const uint8_t *bytes, size_t n);
int board_flash_read(uint8_t *to, const uint8_t *from, size_t n);

#endif
