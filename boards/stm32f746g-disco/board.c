// board.c -- ST 32F746GDISCOVERY with STM32F746NG. Line: USART1, TX PA9, RX PB7 (UM1907, section 5.8), to the ST-LINK's USB.
#include "caches.h"
#include "cortexm.h"
#include "stm32_usart.h"
#include "stm32f4_f7.h"

enum {
  GPIO_AB_CLOCK = 3 << 0,
  USART1_CLOCK = 1 << 4,
  USART_FUNCTION = 7, // data sheet, table of alternate functions

  // RM0385 section 5.3.2: 16 MHz / 8 * 180 / 2 = 180 MHz, the most without over-drive (section 4.1.4).
  PLL = 8 | 180 << 6 | 0 << 16 | 8 << 24,
  // RM0385 section 5.3.3: AHB 180 MHz, APB1 45 MHz, APB2 90 MHz.
  BUSES = 5 << 10 | 4 << 13,
  APB2_HZ = 90000000,
  WAIT_STATES = 5, // RM0385 section 3.3.2: up to 180 MHz at 3.3 V
};

void mg_port_init(void) {
  board_caches_on();
  RCC_AHB1ENR |= GPIO_AB_CLOCK;
  RCC_APB2ENR |= USART1_CLOCK;
  bool fast = board_pll_on(PLL, BUSES, WAIT_STATES);
  board_pin(GPIO_A, 9, USART_FUNCTION);
  board_pin(GPIO_B, 7, USART_FUNCTION);
  board_usart_on(fast ? APB2_HZ : HSI_HZ);
}

void board_flash_changed(const uint8_t *start, size_t n) {
  board_caches_forget(start, n);
}
