// stm32_usart.h -- the USART of an STM32 as the serial line.
#ifndef BOARD_STM32_USART_H
#define BOARD_STM32_USART_H

#include <stdint.h>

// The USART on, 115,200 baud, 8N1, receiving by interrupt. Its clock and pins are on. `clock_hz`: of its kernel clock.
void board_usart_on(uint32_t clock_hz);

#endif
