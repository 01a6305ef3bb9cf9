// stm32f4_f7.c -- what the chips of the STM32F4 and STM32F7 series share: clock control, pins, flash.
//
// board.cmake says BOARD_FLASH_UNIT_BYTES: the flash has four sectors of one unit, one of four units, then sectors of eight
// (RM0390 section 3.3: 16 KB; RM0385 section 3.3: 32 KB).
//
// The core runs from the flash that it changes: it stands still while a sector is erased (up to 4 s) or a word is programmed
// (up to 100 us), interrupts included. Bytes that come in meanwhile are lost and counted; the link sends them again.
#include "stm32f4_f7.h"

#include "cortexm.h"

#include <string.h>

// ---- clock: RM0390 section 6.3, RM0385 section 5.3 -----------------------------------------------------------------------

#define RCC_CR REG(0x40023800)
#define RCC_PLLCFGR REG(0x40023804)
#define RCC_CFGR REG(0x40023808)

enum { PLL_ON = 1 << 24, PLL_READY = 1 << 25, SWITCH_PLL = 2, SWITCHED = 3 << 2, SWITCHED_PLL = 2 << 2, WAIT_READS = 100000 };

// ---- flash interface: RM0390 section 3.8, RM0385 section 3.7 -------------------------------------------------------------

#define FLASH_ACR REG(0x40023C00)
#define FLASH_KEYR REG(0x40023C04)
#define FLASH_SR REG(0x40023C0C)
#define FLASH_CR REG(0x40023C10)

enum {
  FLASH_BASE = 0x08000000,
  CR_PROGRAM = 1 << 0,
  CR_SECTOR_ERASE = 1 << 1,
  CR_SECTOR_SHIFT = 3,
  CR_BY_WORDS = 2 << 8, // supply above 2.7 V
  CR_START = 1 << 16,
  SR_ERRORS = 0xF2,
  SR_BUSY = 1 << 16,
  BUSY_READS = 1 << 28,
};
#define CR_LOCK (1u << 31)

bool board_pll_on(uint32_t pllcfgr, uint32_t cfgr, uint32_t acr) {
  RCC_PLLCFGR = pllcfgr;
  RCC_CR |= PLL_ON;
  if (!board_wait(&RCC_CR, PLL_READY, PLL_READY, WAIT_READS))
    return false;
  FLASH_ACR = acr;
  if (!board_wait(&FLASH_ACR, 0xF, acr & 0xF, WAIT_READS))
    return false;
  RCC_CFGR = cfgr;
  RCC_CFGR = cfgr | SWITCH_PLL;
  if (board_wait(&RCC_CFGR, SWITCHED, SWITCHED_PLL, WAIT_READS))
    return true;
  RCC_CFGR = 0;
  return false;
}

void board_pin(uint32_t port, uint32_t pin, uint32_t af) {
  volatile uint32_t *mode = &REG(port), *function = &REG(port + 0x20 + 4 * (pin / 8));
  uint32_t at = 4 * (pin % 8);
  *function = (*function & ~(0xFu << at)) | af << at;
  *mode = (*mode & ~(3u << 2 * pin)) | 2u << 2 * pin;
}

static int finish(void) {
  bool done = board_wait(&FLASH_SR, SR_BUSY, 0, BUSY_READS);
  uint32_t errors = FLASH_SR & SR_ERRORS;
  FLASH_SR = errors;
  return done && errors == 0 ? 0 : -1;
}

static void unlock(uint32_t what) {
  FLASH_KEYR = 0x45670123;
  FLASH_KEYR = 0xCDEF89AB;
  FLASH_SR &= SR_ERRORS; // a 1 clears; Renode's STM32F746 would keep it
  FLASH_CR = what | CR_BY_WORDS;
}

static uint32_t sector_of(uint32_t offset) {
  uint32_t units = offset / BOARD_FLASH_UNIT_BYTES;
  return units < 4 ? units : 4 + units / 8;
}

int board_flash_erase(uint8_t *start, size_t n) {
  int code = 0;
  uint32_t offset = (uint32_t)(uintptr_t)start - FLASH_BASE;
  uint32_t last = sector_of(offset + (uint32_t)n - 1);
  for (uint32_t sector = sector_of(offset); n != 0 && sector <= last && code == 0; sector++) {
    unlock(CR_SECTOR_ERASE | sector << CR_SECTOR_SHIFT);
    FLASH_CR |= CR_START;
    code = finish();
    FLASH_CR = CR_LOCK;
  }
  board_flash_changed(start, n);
  return code;
}

int board_flash_program(uint8_t *at, const uint8_t *bytes, size_t n) {
  int code = 0;
  unlock(CR_PROGRAM);
  for (size_t i = 0; i < n && code == 0; i += 4) {
    uint32_t word = 0xFFFFFFFF;
    memcpy(&word, bytes + i, n - i < 4 ? n - i : 4);
    *(volatile uint32_t *)(at + i) = word;
    __asm volatile("dsb" ::: "memory"); // one word at a time: the Cortex-M7 would join two
    code = finish();
  }
  FLASH_CR = CR_LOCK;
  board_flash_changed(at, n);
  return code;
}

int board_flash_read(uint8_t *to, const uint8_t *from, size_t n) {
  memcpy(to, from, n);
  return 0;
}
