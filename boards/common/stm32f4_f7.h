// stm32f4_f7.h -- what the chips of the STM32F4 and STM32F7 series share: clock control, pins, flash.
#ifndef BOARD_STM32F4_F7_H
#define BOARD_STM32F4_F7_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { HSI_HZ = 16000000 };

// RCC: RM0390 section 6.3, RM0385 section 5.3. GPIO: RM0390 section 7.4, RM0385 section 6.4.
#define RCC_AHB1ENR REG(0x40023830)
#define RCC_APB1ENR REG(0x40023840)
#define RCC_APB2ENR REG(0x40023844)
#define GPIO_A 0x40020000u
#define GPIO_B 0x40020400u

// The core on the PLL, which runs on the internal 16 MHz oscillator (HSI). pllcfgr, acr: values of RCC_PLLCFGR and FLASH_ACR;
// cfgr: the bus dividers of RCC_CFGR. False where the PLL does not lock: the core then stays on HSI, undivided.
bool board_pll_on(uint32_t pllcfgr, uint32_t cfgr, uint32_t acr);

// Pin 0 … 15 of a port as alternate function af; its port has a clock.
void board_pin(uint32_t port, uint32_t pin, uint32_t af);

// The board's own: called after flash was erased or programmed.
void board_flash_changed(const uint8_t *start, size_t n);

#endif
