// cortexm.c -- what every Cortex-M board shares: start-up, vectors, receive ring, memory as cortexm.ld lays it out.
//
// board.cmake says BOARD_LINE_IRQ, the external interrupt of the serial line's receiver; no other is ever enabled. Cores with
// TrustZone run in Secure state, in which they come out of reset.
#include "cortexm.h"

#include <string.h>

int main(void);

// Symbols of cortexm.ld: only their addresses mean something.
extern uint8_t board_stack_bottom[], board_stack_top[], board_data_start[], board_data_end[], board_data_load[];
extern uint8_t board_bss_start[], board_bss_end[], board_pool_start[], board_pool_end[];
extern uint8_t board_firmware_start[], board_firmware_end[], board_slot_start[], board_slot_end[];
extern uint8_t board_checkpoints_start[];

// Armv7-M ARM B3.2.2, Armv8-M ARM D1.2.
#define SCB_VTOR REG(0xE000ED08)
#define SCB_AIRCR REG(0xE000ED0C)
#define SCB_CPACR REG(0xE000ED88)

enum { STACK_PAINT = 0xA5 };

// ---- start --------------------------------------------------------------------------------------------------------------

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
  SCB_VTOR = (uint32_t)(uintptr_t)board_firmware_start; // a boot loader may have set another
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
} vectors[16 + BOARD_LINE_IRQ + 1] = {
  [0] = {.stack = board_stack_top},
  [1] = {.run = reset_handler},
  [2 ... 14] = {.run = fault_handler},
  [15] = {.run = board_systick_handler},
  [16 + BOARD_LINE_IRQ] = {.run = board_line_handler},
};

// ---- the receive ring ---------------------------------------------------------------------------------------------------

static struct {
  uint8_t bytes[MG_RX_RING_BYTES];
  volatile uint32_t head; // written by the interrupt
  volatile uint32_t tail; // written by mg_port_read
  volatile uint32_t overruns;
} ring;

static uint32_t next_of(uint32_t i) {
  return i + 1 < MG_RX_RING_BYTES ? i + 1 : 0;
}

void board_lost(void) {
  ring.overruns++;
}

void board_received(uint8_t byte) {
  uint32_t next = next_of(ring.head);
  if (next == ring.tail) {
    board_lost();
    return;
  }
  ring.bytes[ring.head] = byte;
  ring.head = next;
}

size_t mg_port_read(uint8_t *bytes, size_t n) {
  size_t got = 0;
  while (got < n && ring.tail != ring.head) {
    bytes[got++] = ring.bytes[ring.tail];
    ring.tail = next_of(ring.tail);
  }
  return got;
}

void mg_port_idle(void) {
  // WFI wakes on a pending interrupt although it is masked, so none is lost between the test and the sleep.
  __asm volatile("cpsid i" ::: "memory");
  if (ring.tail == ring.head)
    __asm volatile("wfi" ::: "memory");
  __asm volatile("cpsie i" ::: "memory");
}

// ---- memory -------------------------------------------------------------------------------------------------------------

struct mg_port_pool mg_port_pool(void) {
  return (struct mg_port_pool){board_pool_start, (size_t)(board_pool_end - board_pool_start)};
}

struct mg_port_slot mg_port_slot(void) {
  return (struct mg_port_slot){board_slot_start, (size_t)(board_slot_end - board_slot_start)};
}

int mg_port_slot_erase(size_t bytes) {
  return board_flash_erase(board_slot_start, bytes);
}

int mg_port_slot_write(size_t offset, const uint8_t *bytes, size_t n) {
  return board_flash_program(board_slot_start + offset, bytes, n);
}

static uint8_t *checkpoint(uint32_t slot) {
  return board_checkpoints_start + (size_t)slot * MG_CHECKPOINT_BYTES;
}

static int erase_checkpoint(void *user, uint32_t slot) {
  (void)user;
  return board_flash_erase(checkpoint(slot), MG_CHECKPOINT_BYTES);
}

static int program_checkpoint(void *user, uint32_t slot, uint32_t offset, const uint8_t *bytes, uint32_t n) {
  (void)user;
  return board_flash_program(checkpoint(slot) + offset, bytes, n);
}

static int read_checkpoint(void *user, uint32_t slot, uint32_t offset, uint8_t *bytes, uint32_t n) {
  (void)user;
  return board_flash_read(bytes, checkpoint(slot) + offset, n);
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
