// mcugrad_port.h -- what a board must give. This header is the whole contract; the sources that boards/<name>/board.cmake
// names implement it.
//
// Sizes, the board's name and the unit of a tick are facts of boards/<name>/board.toml. cmake/firmware.cmake hands them to
// the compiler as MG_BOARD_NAME, MG_RAM_BYTES, MG_FLASH_BYTES, MG_FIRMWARE_BYTES, MG_STACK_BYTES, MG_RX_RING_BYTES,
// MG_CHECKPOINT_BYTES (of each of two slots, beside MG_FLASH_BYTES; 0: none), MG_TICK_UNIT (an mg_port_tick_unit) and MG_TICK_MUL / MG_TICK_DIV (units per tick).
#ifndef MCUGRAD_PORT_H
#define MCUGRAD_PORT_H

#include "mcugrad.h"

enum mg_port_tick_unit {
  MG_PORT_TICK_NONE = 0, // the timer does not move: no figures
  MG_PORT_TICK_INSTRUCTIONS = 1,
  MG_PORT_TICK_CYCLES = 2,
  MG_PORT_TICK_MICROSECONDS = 3,
};

struct mg_port_pool {
  uint8_t *base; // aligned to 16
  size_t bytes;
};

struct mg_port_slot {
  const uint8_t *base; // aligned to 16, readable as memory
  size_t bytes;
};

// What the board can tell about its memory; 0 where it cannot be measured.
struct mg_port_usage {
  uint32_t stack_peak_bytes; // by painting, since reset
  uint32_t static_ram_bytes; // .data and .bss, without pool and stack
  uint32_t firmware_bytes;   // code, constants and initial values in flash
  uint32_t rx_overruns;      // received bytes lost since reset: ring full, or interrupt too late
};

// Clocks, serial line, timer. Called once, before all else.
void mg_port_init(void);

// Take at most n received bytes out of the ring; returns how many. Never waits.
//
// Reception must go on while the CPU is busy: an interrupt (or DMA) fills a ring of MG_RX_RING_BYTES. Where DMA fills it on
// a core with a data cache, the ring is aligned and padded to 32 bytes and this function invalidates before it reads.
size_t mg_port_read(uint8_t *bytes, size_t n);

// Send n bytes; returns when all are handed to the line.
void mg_port_write(const uint8_t *bytes, size_t n);

// Sleep until a received byte may be there. May return early; must not sleep where the ring is not empty.
void mg_port_idle(void);

// Change the line's rate (8 data bits, no parity, 1 stop bit), when all that was written has left it. Returns false and changes
// nothing where it cannot come within 2 % of `rate`. The line starts at 115,200. Bytes with a framing error are received as any others:
// they tell that the host has another rate. Optional: without it, no other rate is taken.
bool mg_port_baud(uint32_t rate);

// Between hold(true) and hold(false) nothing need be received, where the line waits meanwhile without loss (an emulated one), so that
// interrupts do not count. Optional.
void mg_port_hold(bool on);

// A stopwatch; stop returns the ticks since start. It does not wrap within 2^63 ticks. On boards that count instructions,
// equal work gives an equal count while reception is held, whatever the host sends.
void mg_port_timer_start(void);
uint64_t mg_port_timer_stop(void);

// RAM for the plan's STATE, IO and ARENA: all that the firmware leaves over.
struct mg_port_pool mg_port_pool(void);

// Non-volatile memory for one plan. erase prepares the first `bytes` of the slot; write then takes ascending offsets that are multiples of 32.
// Both return 0, or a negative value where the memory failed.
struct mg_port_slot mg_port_slot(void);
int mg_port_slot_erase(size_t bytes);
int mg_port_slot_write(size_t offset, const uint8_t *bytes, size_t n);

// Flash for checkpoints, with slot_bytes = MG_CHECKPOINT_BYTES: nothing else lies in its erase blocks. A board without has slot_bytes 0.
struct mg_store mg_port_store(void);

struct mg_port_usage mg_port_usage(void);

#endif
