// mps2.c -- the FPGA images of Arm's MPS2 and MPS3 boards, as emulators have them: UART0, SysTick, and RAM as "flash".
//
// What differs between images comes from board.cmake, which says where it stands in the image's application note:
//   BOARD_UART0_BASE        address of UART0
//   BOARD_UART0_CLOCK_HZ    its clock
//   BOARD_LINE_IRQ          external interrupt of its receiver
// and the addresses of memory, for cortexm.ld. All addresses are the Secure ones where the core has TrustZone.
#include "cortexm.h"

#include <string.h>

// APB UART of the Cortex-M System Design Kit: Arm DDI 0479, chapter 4, APB UART.
#define UART0_DATA REG(BOARD_UART0_BASE + 0x00)
#define UART0_STATE REG(BOARD_UART0_BASE + 0x04)
#define UART0_CTRL REG(BOARD_UART0_BASE + 0x08)
#define UART0_INTCLEAR REG(BOARD_UART0_BASE + 0x0C)
#define UART0_BAUDDIV REG(BOARD_UART0_BASE + 0x10)

enum {
  UART_TX_FULL = 1 << 0,
  UART_RX_FULL = 1 << 1,
  UART_RX_OVERRUN = 1 << 3,
  BAUD = 115200,
};

static volatile uint32_t systick_wraps;

void board_line_handler(void) {
  UART0_INTCLEAR = UART_RX_FULL;
  if ((UART0_STATE & UART_RX_OVERRUN) != 0) {
    UART0_STATE = UART_RX_OVERRUN;
    board_lost();
  }
  while ((UART0_STATE & UART_RX_FULL) != 0)
    board_received((uint8_t)UART0_DATA);
}

void board_systick_handler(void) {
  systick_wraps++;
}

void mg_port_init(void) {
  UART0_BAUDDIV = BOARD_UART0_CLOCK_HZ / BAUD;
  UART0_CTRL = 1u << 0 | 1u << 1 | 1u << 3; // TX, RX, RX interrupt
  board_line_irq_on();
}

void mg_port_write(const uint8_t *bytes, size_t n) {
  for (size_t i = 0; i < n; i++) {
    while ((UART0_STATE & UART_TX_FULL) != 0) {
    }
    UART0_DATA = bytes[i];
  }
}

bool mg_port_baud(uint32_t rate) {
  uint32_t divider = (BOARD_UART0_CLOCK_HZ + rate / 2) / rate;
  uint32_t real = divider != 0 ? BOARD_UART0_CLOCK_HZ / divider : 0;
  if (divider < 16 || (real > rate ? real - rate : rate - real) > rate / 50)
    return false;
  while ((UART0_STATE & UART_TX_FULL) != 0) {
  }
  UART0_BAUDDIV = divider;
  return true;
}

// Instructions of the RX interrupt would count, at moments that differ from run to run. The emulated UART holds its sender
// back while nobody takes the byte, so that here the interrupt can wait until the stopwatch stands.
void mg_port_hold(bool on) {
  if (on)
    board_line_irq_off();
  else
    board_line_irq_on();
}

void mg_port_timer_start(void) {
  SYST_CSR = 0;
  systick_wraps = 0;
  SYST_RVR = SYSTICK_MAX;
  SYST_CVR = 0;
  SYST_CSR = 7; // core clock, interrupt, on
}

uint64_t mg_port_timer_stop(void) {
  uint32_t wraps, now;
  do {
    wraps = systick_wraps;
    now = SYST_CVR;
  } while (wraps != systick_wraps);
  SYST_CSR = 0;
  return (uint64_t)wraps * (SYSTICK_MAX + 1u) + ((0u - now) & SYSTICK_MAX); // it reads 0 up to the first tick, and at each wrap
}

// It survives a reset, and is gone when the emulator ends.
int board_flash_erase(uint8_t *start, size_t n) {
  memset(start, 0xFF, n);
  return 0;
}

int board_flash_program(uint8_t *at, const uint8_t *bytes, size_t n) {
  memcpy(at, bytes, n);
  return 0;
}

int board_flash_read(uint8_t *to, const uint8_t *from, size_t n) {
  memcpy(to, from, n);
  return 0;
}
