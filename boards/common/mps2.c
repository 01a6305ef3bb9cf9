// mps2.c -- the FPGA images of Arm's MPS2 and MPS3 boards, as QEMU emulates them: start-up, UART0, SysTick, plan slot.
//
// What differs between images comes from board.cmake, which says where it stands in the image's application note:
//   BOARD_UART0_BASE        address of UART0
//   BOARD_UART0_CLOCK_HZ    its clock
//   BOARD_UART0_RX_IRQ      external interrupt of its receiver
// and the addresses of memory, for mps2.ld. Cores with TrustZone run in Secure state, in which they come out of reset; all
// addresses are the Secure ones.
#include "mcugrad_port.h"

#include <string.h>

int main(void);

// Symbols of mps2.ld: only their addresses mean something.
extern uint8_t board_stack_bottom[], board_stack_top[], board_data_start[], board_data_end[], board_data_load[];
extern uint8_t board_bss_start[], board_bss_end[], board_pool_start[], board_pool_end[];
extern uint8_t board_firmware_start[], board_firmware_end[], board_slot_start[], board_slot_end[];
extern uint8_t board_checkpoints_start[];

#define REG(address) (*(volatile uint32_t *)(address))

// APB UART of the Cortex-M System Design Kit: Arm DDI 0479, chapter 4, APB UART.
#define UART0_DATA REG(BOARD_UART0_BASE + 0x00)
#define UART0_STATE REG(BOARD_UART0_BASE + 0x04)
#define UART0_CTRL REG(BOARD_UART0_BASE + 0x08)
#define UART0_INTCLEAR REG(BOARD_UART0_BASE + 0x0C)
#define UART0_BAUDDIV REG(BOARD_UART0_BASE + 0x10)

// System control space: Armv7-M ARM (DDI 0403) sections B3.3 SysTick, B3.4 NVIC, B3.2 SCB; the same registers in the
// Armv8-M ARM (DDI 0553), section D1.2, by name.
#define SYST_CSR REG(0xE000E010)
#define SYST_RVR REG(0xE000E014)
#define SYST_CVR REG(0xE000E018)
#define NVIC_ISER(n) REG(0xE000E100 + 4 * ((n) / 32))
#define NVIC_ICER(n) REG(0xE000E180 + 4 * ((n) / 32))
#define SCB_AIRCR REG(0xE000ED0C)
#define SCB_CPACR REG(0xE000ED88)

enum {
  UART_TX_FULL = 1 << 0,
  UART_RX_FULL = 1 << 1,
  UART_RX_OVERRUN = 1 << 3,
  BAUD = 115200,
  SYSTICK_MAX = 0xFFFFFF,
  STACK_PAINT = 0xA5,
};

static struct {
  uint8_t bytes[MG_RX_RING_BYTES];
  volatile uint32_t head; // written by the interrupt
  volatile uint32_t tail; // written by mg_port_read
  volatile uint32_t overruns;
} ring;

static volatile uint32_t systick_wraps;

static void receive_on(void) {
  NVIC_ISER(BOARD_UART0_RX_IRQ) = 1u << BOARD_UART0_RX_IRQ % 32;
}

static void receive_off(void) {
  NVIC_ICER(BOARD_UART0_RX_IRQ) = 1u << BOARD_UART0_RX_IRQ % 32;
}

static uint32_t next_of(uint32_t i) {
  return i + 1 < MG_RX_RING_BYTES ? i + 1 : 0;
}

static void uart0_rx_handler(void) {
  UART0_INTCLEAR = UART_RX_FULL;
  if ((UART0_STATE & UART_RX_OVERRUN) != 0) {
    UART0_STATE = UART_RX_OVERRUN;
    ring.overruns++;
  }
  while ((UART0_STATE & UART_RX_FULL) != 0) {
    uint8_t byte = (uint8_t)UART0_DATA;
    uint32_t next = next_of(ring.head);
    if (next == ring.tail) {
      ring.overruns++;
    } else {
      ring.bytes[ring.head] = byte;
      ring.head = next;
    }
  }
}

static void systick_handler(void) {
  systick_wraps++;
}

// A fault: start again. The host sees that its session is gone.
static void fault_handler(void) {
  SCB_AIRCR = 0x05FA0004;
  for (;;) {
  }
}

void reset_handler(void) {
#ifdef __ARM_FP
  SCB_CPACR |= 0xFu << 20; // CP10 and CP11: the FPU, and MVE where there is one
#endif
  __asm volatile("dsb\n\tisb" ::: "memory");
  uint8_t *sp;
  __asm volatile("mov %0, sp" : "=r"(sp));
  memset(board_stack_bottom, STACK_PAINT, (size_t)(sp - board_stack_bottom) - 64);
  memcpy(board_data_start, board_data_load, (size_t)(board_data_end - board_data_start));
  memset(board_bss_start, 0, (size_t)(board_bss_end - board_bss_start));
  (void)main();
  fault_handler();
}

typedef void handler(void);

__attribute__((section(".vectors"), used)) static const union {
  void *stack;
  handler *run;
} vectors[16 + BOARD_UART0_RX_IRQ + 1] = {
  [0] = {.stack = board_stack_top},
  [1] = {.run = reset_handler},
  [2 ... 14] = {.run = fault_handler},
  [15] = {.run = systick_handler},
  [16 + BOARD_UART0_RX_IRQ] = {.run = uart0_rx_handler}, // no other is ever enabled
};

void mg_port_init(void) {
  UART0_BAUDDIV = BOARD_UART0_CLOCK_HZ / BAUD;
  UART0_CTRL = 1u << 0 | 1u << 1 | 1u << 3; // TX, RX, RX interrupt
  receive_on();
}

size_t mg_port_read(uint8_t *bytes, size_t n) {
  size_t got = 0;
  while (got < n && ring.tail != ring.head) {
    bytes[got++] = ring.bytes[ring.tail];
    ring.tail = next_of(ring.tail);
  }
  return got;
}

void mg_port_write(const uint8_t *bytes, size_t n) {
  for (size_t i = 0; i < n; i++) {
    while ((UART0_STATE & UART_TX_FULL) != 0) {
    }
    UART0_DATA = bytes[i];
  }
}

void mg_port_idle(void) {
  // WFI wakes on a pending interrupt although it is masked, so none is lost between the test and the sleep.
  __asm volatile("cpsid i" ::: "memory");
  if (ring.tail == ring.head)
    __asm volatile("wfi" ::: "memory");
  __asm volatile("cpsie i" ::: "memory");
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
    receive_off();
  else
    receive_on();
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

struct mg_port_pool mg_port_pool(void) {
  return (struct mg_port_pool){board_pool_start, (size_t)(board_pool_end - board_pool_start)};
}

struct mg_port_slot mg_port_slot(void) {
  return (struct mg_port_slot){board_slot_start, (size_t)(board_slot_end - board_slot_start)};
}

int mg_port_slot_erase(size_t bytes) {
  memset(board_slot_start, 0xFF, bytes);
  return 0;
}

int mg_port_slot_write(size_t offset, const uint8_t *bytes, size_t n) {
  memcpy(board_slot_start + offset, bytes, n);
  return 0;
}

// The "flash" is RAM: a checkpoint survives a reset, and is gone when QEMU ends.
static uint8_t *checkpoint(uint32_t slot) {
  return board_checkpoints_start + (size_t)slot * MG_CHECKPOINT_BYTES;
}

static int erase_checkpoint(void *user, uint32_t slot) {
  (void)user;
  memset(checkpoint(slot), 0xFF, MG_CHECKPOINT_BYTES);
  return 0;
}

static int program_checkpoint(void *user, uint32_t slot, uint32_t offset, const uint8_t *bytes, uint32_t n) {
  (void)user;
  memcpy(checkpoint(slot) + offset, bytes, n);
  return 0;
}

static int read_checkpoint(void *user, uint32_t slot, uint32_t offset, uint8_t *bytes, uint32_t n) {
  (void)user;
  memcpy(bytes, checkpoint(slot) + offset, n);
  return 0;
}

struct mg_store mg_port_store(void) {
  return (struct mg_store){MG_CHECKPOINT_BYTES, NULL, erase_checkpoint, program_checkpoint, read_checkpoint};
}

struct mg_port_usage mg_port_usage(void) {
  const uint8_t *untouched = board_stack_bottom;
  while (untouched < board_stack_top && *untouched == STACK_PAINT)
    untouched++;
  return (struct mg_port_usage){
    .stack_peak_bytes = (uint32_t)(board_stack_top - untouched),
    .static_ram_bytes = (uint32_t)(board_data_end - board_data_start) + (uint32_t)(board_bss_end - board_bss_start),
    .firmware_bytes = (uint32_t)(board_firmware_end - board_firmware_start),
    .rx_overruns = ring.overruns,
  };
}
