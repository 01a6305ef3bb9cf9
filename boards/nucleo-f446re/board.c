// board.c -- ST Nucleo-64 with STM32F446RE. Line: USART2, TX PA2, RX PA3 (UM1724, section 6.8), to the ST-LINK's USB.
#include "cortexm.h"
#include "stm32_usart.h"
#include "stm32f4_f7.h"

enum {
  GPIO_A_CLOCK = 1 << 0,
  USART2_CLOCK = 1 << 17,
  USART_FUNCTION = 7, // data sheet, table of alternate functions

  // RM0390 section 6.3.2: 16 MHz / 8 * 168 / 2 = 168 MHz, the most without over-drive (section 5.1.4); 48 MHz for USB.
  PLL = 8 | 168 << 6 | 0 << 16 | 7 << 24 | 2 << 28,
  // RM0390 section 6.3.3: AHB 168 MHz, APB1 42 MHz, APB2 84 MHz.
  BUSES = 5 << 10 | 4 << 13,
  APB1_HZ = 42000000,
};

// RM0390 section 3.4.1: 5 wait states up to 180 MHz at 3.3 V; section 3.8.1: prefetch and both caches.
#define FLASH_ACR REG(0x40023C00)
enum { WAIT_STATES = 5, PREFETCH = 1 << 8, CACHES = 3 << 9, CACHES_RESET = 3 << 11 };

void mg_port_init(void) {
  RCC_AHB1ENR |= GPIO_A_CLOCK;
  RCC_APB1ENR |= USART2_CLOCK;
  bool fast = board_pll_on(PLL, BUSES, WAIT_STATES | PREFETCH | CACHES);
  board_pin(GPIO_A, 2, USART_FUNCTION);
  board_pin(GPIO_A, 3, USART_FUNCTION);
  board_usart_on(fast ? APB1_HZ : HSI_HZ);
}

void board_flash_changed(const uint8_t *start, size_t n) {
  (void)start;
  (void)n;
  uint32_t acr = FLASH_ACR;
  FLASH_ACR = acr & ~(uint32_t)CACHES;
  FLASH_ACR = (acr & ~(uint32_t)CACHES) | CACHES_RESET;
  FLASH_ACR = acr;
}
