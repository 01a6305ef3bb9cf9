// board.c -- ST Nucleo-144 with STM32H743ZI. Line: USART3, TX PD8, RX PD9 (UM1974, section 6.9), to the ST-LINK's USB.
#include "caches.h"
#include "cortexm.h"
#include "stm32_usart.h"

#include <string.h>

enum {
  HSI_HZ = 64000000,
  APB1_HZ = 50000000, // with the PLL
  WAIT_READS = 100000,
};

// ---- clock: RM0433 section 8.7 -------------------------------------------------------------------------------------------

#define RCC_CR REG(0x58024400)
#define RCC_CFGR REG(0x58024410)
#define RCC_D1CFGR REG(0x58024418)
#define RCC_D2CFGR REG(0x5802441C)
#define RCC_D3CFGR REG(0x58024420)
#define RCC_PLLCKSELR REG(0x58024428)
#define RCC_PLLCFGR REG(0x5802442C)
#define RCC_PLL1DIVR REG(0x58024430)
#define RCC_AHB4ENR REG(0x580244E0)
#define RCC_APB1LENR REG(0x580244E8)
#define FLASH_ACR REG(0x52002000) // RM0433 section 4.9.1
#define PWR_CSR1 REG(0x58024804)  // RM0433 section 6.8
#define PWR_CR3 REG(0x5802480C)

enum {
  PLL1_ON = 1 << 24,
  PLL1_READY = 1 << 25,
  SWITCH_PLL1 = 3,
  SWITCHED = 7 << 3,
  SWITCHED_PLL1 = 3 << 3,
  HALF_AHB = 8,
  HALF_D1_APB3 = 4 << 4,
  HALF_D2_APBS = 4 << 4 | 4 << 8,
  HALF_D3_APB4 = 4 << 4,
  GPIO_D_CLOCK = 1 << 3,
  USART3_CLOCK = 1 << 18,
  FLASH_DELAYS = 1 << 4 | 2, // table 17: up to 135 MHz on AXI in VOS3
  CR3_CHOOSABLE = 1 << 2,
  CSR1_VOLTAGE_READY = 1 << 13,
};

// 200 MHz from the internal 64 MHz oscillator: 64 / 10 * 125 / 4. That is the most in VOS3, in which the chip comes out of reset
// (section 6.6.2); buses: AXI and AHB 100 MHz, APBs 50 MHz. False where voltage or PLL do not get ready: all
// stays at 64 MHz.
static bool pll_on(void) {
  PWR_CR3 &= ~(uint32_t)CR3_CHOOSABLE; // the supply stays the LDO: said once, before the clock may rise
  if (!board_wait(&PWR_CSR1, CSR1_VOLTAGE_READY, CSR1_VOLTAGE_READY, WAIT_READS))
    return false;
  RCC_PLLCKSELR = 10 << 4;                   // reference 6.4 MHz from HSI
  RCC_PLLCFGR = 2 << 2 | 1 << 16;            // reference 4 to 8 MHz, wide VCO, output P only
  RCC_PLL1DIVR = (125 - 1) | (4 - 1) << 9;   // VCO 800 MHz
  RCC_CR |= PLL1_ON;
  if (!board_wait(&RCC_CR, PLL1_READY, PLL1_READY, WAIT_READS))
    return false;
  RCC_D1CFGR = HALF_AHB | HALF_D1_APB3; // before the faster clock, so that no bus is ever too fast
  RCC_D2CFGR = HALF_D2_APBS;
  RCC_D3CFGR = HALF_D3_APB4;
  RCC_CFGR = SWITCH_PLL1;
  if (board_wait(&RCC_CFGR, SWITCHED, SWITCHED_PLL1, WAIT_READS)) {
    FLASH_ACR = FLASH_DELAYS; // out of reset it has 7 wait states, enough for all
    return true;
  }
  RCC_CFGR = 0;
  RCC_D1CFGR = 0;
  RCC_D2CFGR = 0;
  RCC_D3CFGR = 0;
  return false;
}

// ---- pins: RM0433 section 11.4 -------------------------------------------------------------------------------------------

#define GPIOD_MODER REG(0x58020C00)
#define GPIOD_AFRH REG(0x58020C24)

static void pins_on(void) {
  GPIOD_AFRH = (GPIOD_AFRH & ~0xFFu) | 0x77; // PD8 and PD9: function 7, USART3
  GPIOD_MODER = (GPIOD_MODER & ~(0xFu << 16)) | 0xAu << 16;
}

void mg_port_init(void) {
  board_caches_on();
  RCC_AHB4ENR |= GPIO_D_CLOCK;
  RCC_APB1LENR |= USART3_CLOCK;
  bool fast = pll_on();
  pins_on();
  board_usart_on(fast ? APB1_HZ : HSI_HZ);
}

// ---- flash, bank 2: RM0433 section 4.9 -----------------------------------------------------------------------------------

#define FLASH_KEYR2 REG(0x52002104)
#define FLASH_CR2 REG(0x5200210C)
#define FLASH_SR2 REG(0x52002110)
#define FLASH_CCR2 REG(0x52002114)
#define SCB_CCR REG(0xE000ED14)

enum {
  BANK2 = 0x08100000,
  SECTOR_BYTES = 131072,
  FLASH_WORD_BYTES = 32,
  CR_LOCK = 1 << 0,
  CR_PROGRAM = 1 << 1,
  CR_SECTOR_ERASE = 1 << 2,
  CR_BY_WORDS = 2 << 4,
  CR_START = 1 << 7,
  CR_SECTOR_SHIFT = 8,
  SR_BUSY = 1 << 0 | 1 << 2, // the bank works, or its queue does
  SR_WRITE_ERRORS = 1 << 17 | 1 << 18 | 1 << 19 | 1 << 21 | 1 << 22,
  SR_TWO_WRONG_BITS = 1 << 26,
  CCR_BUS_FAULTS_IGNORED = 1 << 8, // Armv7-M ARM B3.2.8: by code of priority -1 and below
  BUSY_READS = 1 << 28,
};

static void unlock(uint32_t what) {
  FLASH_KEYR2 = 0x45670123;
  FLASH_KEYR2 = 0xCDEF89AB;
  FLASH_CCR2 = SR_WRITE_ERRORS;
  FLASH_CR2 = what | CR_BY_WORDS;
}

static int finish(void) {
  bool done = board_wait(&FLASH_SR2, SR_BUSY, 0, BUSY_READS);
  return done && (FLASH_SR2 & SR_WRITE_ERRORS) == 0 ? 0 : -1;
}

int board_flash_erase(uint8_t *start, size_t n) {
  int code = 0;
  uint32_t offset = (uint32_t)(uintptr_t)start - BANK2;
  for (uint32_t at = offset; at < offset + n && code == 0; at += SECTOR_BYTES) {
    unlock(CR_SECTOR_ERASE | at / SECTOR_BYTES << CR_SECTOR_SHIFT);
    FLASH_CR2 |= CR_START;
    code = finish();
    FLASH_CR2 = CR_LOCK;
  }
  board_caches_forget(start, n);
  return code;
}

int board_flash_program(uint8_t *at, const uint8_t *bytes, size_t n) {
  int code = 0;
  unlock(CR_PROGRAM);
  for (size_t i = 0; i < n && code == 0; i += FLASH_WORD_BYTES) {
    uint32_t words[FLASH_WORD_BYTES / 4];
    memset(words, 0xFF, sizeof words);
    memcpy(words, bytes + i, n - i < FLASH_WORD_BYTES ? n - i : FLASH_WORD_BYTES);
    for (uint32_t k = 0; k < FLASH_WORD_BYTES / 4; k++)
      *(volatile uint32_t *)(at + i + 4 * k) = words[k];
    __asm volatile("dsb" ::: "memory");
    code = finish();
  }
  FLASH_CR2 = CR_LOCK;
  board_caches_forget(at, n);
  return code;
}

// A flash word that a power cut has torn may have two wrong bits: the read is then a bus fault, which is ignored here and seen
// in the status. Interrupts wait for the 32 bytes only.
static int read_flash_word(uint8_t *to, const uint8_t *from, size_t n) {
  FLASH_CCR2 = SR_TWO_WRONG_BITS;
  __asm volatile("cpsid f" ::: "memory");
  SCB_CCR |= CCR_BUS_FAULTS_IGNORED;
  __asm volatile("dsb\n\tisb" ::: "memory");
  memcpy(to, from, n);
  __asm volatile("dsb" ::: "memory");
  SCB_CCR &= ~(uint32_t)CCR_BUS_FAULTS_IGNORED;
  __asm volatile("cpsie f" ::: "memory");
  return (FLASH_SR2 & SR_TWO_WRONG_BITS) == 0 ? 0 : -1;
}

int board_flash_read(uint8_t *to, const uint8_t *from, size_t n) {
  int code = 0;
  for (size_t i = 0; i < n && code == 0; i += FLASH_WORD_BYTES)
    code = read_flash_word(to + i, from + i, n - i < FLASH_WORD_BYTES ? n - i : FLASH_WORD_BYTES);
  return code;
}
