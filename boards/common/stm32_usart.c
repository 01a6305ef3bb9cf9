// stm32_usart.c -- the serial line of the STM32 boards: one interrupt per received byte, transmit by waiting. No DMA, so that the
// data cache of the Cortex-M7 needs no care.
//
// board.cmake says BOARD_USART_BASE, BOARD_LINE_IRQ and BOARD_USART_GENERATION:
//   1  STM32F4: RM0390 chapter 25, USART, "USART registers"
//   2  STM32F7: RM0385 chapter 31; STM32H7: RM0433 chapter 48, its FIFO left off
#include "stm32_usart.h"

#include "cortexm.h"

#if BOARD_USART_GENERATION == 1
#define USART_STATUS REG(BOARD_USART_BASE + 0x00)  // SR
#define USART_RECEIVE REG(BOARD_USART_BASE + 0x04) // DR, both ways
#define USART_SEND REG(BOARD_USART_BASE + 0x04)
#define USART_BRR REG(BOARD_USART_BASE + 0x08)
#define USART_CR1 REG(BOARD_USART_BASE + 0x0C)
enum { CR1_ON = 1 << 13 };
#else
#define USART_CR1 REG(BOARD_USART_BASE + 0x00)
#define USART_BRR REG(BOARD_USART_BASE + 0x0C)
#define USART_STATUS REG(BOARD_USART_BASE + 0x1C) // ISR
#define USART_CLEAR REG(BOARD_USART_BASE + 0x20)  // ICR
#define USART_RECEIVE REG(BOARD_USART_BASE + 0x24)
#define USART_SEND REG(BOARD_USART_BASE + 0x28)
enum { CR1_ON = 1 << 0 };
#endif

// The same bits in both generations.
enum {
  CR1_RECEIVER = 1 << 2,
  CR1_TRANSMITTER = 1 << 3,
  CR1_RECEIVE_INTERRUPT = 1 << 5,
  STATUS_OVERRUN = 1 << 3,
  STATUS_RECEIVED = 1 << 5,
  STATUS_SENT = 1 << 6,  // the last stop bit has left
  STATUS_EMPTY = 1 << 7, // the next byte may be written
};

enum { START_BAUD = 115200, SMALLEST_DIVISOR = 16, LARGEST_DIVISOR = 0xFFFF };

static uint32_t usart_clock_hz;

void board_usart_on(uint32_t clock_hz) {
  usart_clock_hz = clock_hz;
  (void)mg_port_baud(START_BAUD);
  board_line_irq_on();
}

// 16 times oversampled: the divisor in sixteenths, which BRR holds, is the clock over the rate.
bool mg_port_baud(uint32_t rate) {
  uint32_t divisor = (usart_clock_hz + rate / 2) / rate;
  if (divisor < SMALLEST_DIVISOR || divisor > LARGEST_DIVISOR)
    return false;
  uint32_t real = usart_clock_hz / divisor;
  if ((real > rate ? real - rate : rate - real) > rate / 50)
    return false;
  while ((USART_STATUS & STATUS_SENT) == 0) {
  }
  USART_CR1 = 0;
  USART_BRR = divisor;
  USART_CR1 = CR1_ON | CR1_RECEIVER | CR1_TRANSMITTER | CR1_RECEIVE_INTERRUPT;
  return true;
}

void board_line_handler(void) {
  uint32_t status = USART_STATUS;
#if BOARD_USART_GENERATION == 1
  if ((status & (STATUS_RECEIVED | STATUS_OVERRUN)) == 0)
    return;
  uint8_t byte = (uint8_t)USART_RECEIVE; // after the status: this clears both flags
#else
  USART_CLEAR = STATUS_OVERRUN;
  uint8_t byte = (uint8_t)USART_RECEIVE;
#endif
  if ((status & STATUS_RECEIVED) != 0)
    board_received(byte);
  if ((status & STATUS_OVERRUN) != 0)
    board_lost();
}

void mg_port_write(const uint8_t *bytes, size_t n) {
  for (size_t i = 0; i < n; i++) {
    while ((USART_STATUS & STATUS_EMPTY) == 0) {
    }
    USART_SEND = bytes[i];
  }
}
