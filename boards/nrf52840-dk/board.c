// board.c -- Nordic nRF52840 DK (PCA10056). Line: UARTE0, TX P0.06, RX P0.08, to the J-Link's USB. Registers: nRF52840 product
// specification v1.x, the chapter named at each block.
//
// The UARTE moves bytes by DMA (EasyDMA), to and from RAM only; the core has no data cache. It receives one byte at a time: its
// interrupt takes the byte and starts the next, and the receiver's own FIFO bridges the moment between.
#include "cortexm.h"

#include <string.h>

// ---- chapters CLOCK, NVMC, "Debug and trace: access port protection", GPIO -----------------------------------------------

#define CLOCK_HFCLKSTART REG(0x40000000)
#define CLOCK_HFCLKSTARTED REG(0x40000100)
#define APPROTECT_DISABLE REG(0x40000558)
#define UICR_APPROTECT REG(0x10001208)
#define NVMC_READY REG(0x4001E400)
#define NVMC_CONFIG REG(0x4001E504)
#define NVMC_ERASEPAGE REG(0x4001E508)
#define NVMC_ICACHECNF REG(0x4001E540)
#define P0_OUTSET REG(0x50000508)
#define P0_DIRSET REG(0x50000518)
#define P0_PIN_CNF(n) REG(0x50000700 + 4 * (n))

enum { TX_PIN = 6, RX_PIN = 8, PIN_INPUT = 0, CRYSTAL_READS = 1000000, PAGE_BYTES = 4096, READY_READS = 1 << 26 };
enum { FLASH_READ = 0, FLASH_WRITE = 1, FLASH_ERASE = 2 };

// ---- chapter UARTE -------------------------------------------------------------------------------------------------------

#define UARTE(offset) REG(0x40002000 + (offset))
#define UARTE_STARTRX UARTE(0x000)
#define UARTE_STARTTX UARTE(0x008)
#define UARTE_ENDRX UARTE(0x110)
#define UARTE_ENDTX UARTE(0x120)
#define UARTE_ERROR UARTE(0x124)
#define UARTE_INTENSET UARTE(0x304)
#define UARTE_ERRORSRC UARTE(0x480)
#define UARTE_ENABLE UARTE(0x500)
#define UARTE_PSEL_TXD UARTE(0x50C)
#define UARTE_PSEL_RXD UARTE(0x514)
#define UARTE_BAUDRATE UARTE(0x524)
#define UARTE_RXD_PTR UARTE(0x534)
#define UARTE_RXD_MAXCNT UARTE(0x538)
#define UARTE_TXD_PTR UARTE(0x544)
#define UARTE_TXD_MAXCNT UARTE(0x548)
#define UARTE_CONFIG UARTE(0x56C)

enum {
  ON = 8,
  ENDRX_INTERRUPT = 1 << 4,
  ERROR_INTERRUPT = 1 << 9,
  OVERRUN = 1 << 0,
  TX_BYTES = 64,
};

// The table of BAUDRATE.
static const struct {
  uint32_t baud, value;
} rates[] = {{115200, 0x01D60000}, {230400, 0x03B00000}, {460800, 0x07400000}, {921600, 0x0F000000}, {1000000, 0x10000000}};

static volatile uint8_t rx_byte;
static uint8_t tx_bytes[TX_BYTES];

static void receive_next(void) {
  UARTE_ENDRX = 0;
  UARTE_STARTRX = 1;
}

void mg_port_init(void) {
  APPROTECT_DISABLE = UICR_APPROTECT; // newer revisions lock the debug port at reset unless firmware hands this on
  NVMC_ICACHECNF = 1;
  CLOCK_HFCLKSTART = 1; // the crystal: the internal oscillator is too coarse for a UART
  (void)board_wait(&CLOCK_HFCLKSTARTED, 1, 1, CRYSTAL_READS);
  P0_OUTSET = 1u << TX_PIN;
  P0_DIRSET = 1u << TX_PIN;
  P0_PIN_CNF(RX_PIN) = PIN_INPUT;
  UARTE_PSEL_TXD = TX_PIN;
  UARTE_PSEL_RXD = RX_PIN;
  UARTE_BAUDRATE = rates[0].value;
  UARTE_CONFIG = 0; // 8N1, no flow control
  UARTE_ENABLE = ON;
  UARTE_RXD_PTR = (uint32_t)(uintptr_t)&rx_byte;
  UARTE_RXD_MAXCNT = 1;
  UARTE_INTENSET = ENDRX_INTERRUPT | ERROR_INTERRUPT;
  board_line_irq_on();
  receive_next();
}

void board_line_handler(void) {
  if (UARTE_ERROR != 0) {
    UARTE_ERROR = 0;
    uint32_t source = UARTE_ERRORSRC;
    UARTE_ERRORSRC = source;
    if ((source & OVERRUN) != 0)
      board_lost();
  }
  if (UARTE_ENDRX != 0) {
    uint8_t byte = rx_byte;
    receive_next();
    board_received(byte);
  }
}

// Through RAM: the bytes may be in flash, which the DMA does not reach.
void mg_port_write(const uint8_t *bytes, size_t n) {
  while (n != 0) {
    size_t part = n < TX_BYTES ? n : TX_BYTES;
    memcpy(tx_bytes, bytes, part);
    UARTE_TXD_PTR = (uint32_t)(uintptr_t)tx_bytes;
    UARTE_TXD_MAXCNT = (uint32_t)part;
    UARTE_ENDTX = 0;
    __asm volatile("dsb" ::: "memory");
    UARTE_STARTTX = 1;
    while (UARTE_ENDTX == 0) {
    }
    bytes += part;
    n -= part;
  }
}

// mg_port_write has waited for the last bit.
bool mg_port_baud(uint32_t rate) {
  for (size_t i = 0; i < sizeof rates / sizeof rates[0]; i++)
    if (rates[i].baud == rate) {
      UARTE_BAUDRATE = rates[i].value;
      return true;
    }
  return false;
}

// ---- flash: chapter NVMC. The core stands still while a page is erased (85 ms) or a word is programmed (41 us). ----------

static int ready(void) {
  return board_wait(&NVMC_READY, 1, 1, READY_READS) ? 0 : -1;
}

int board_flash_erase(uint8_t *start, size_t n) {
  int code = 0;
  NVMC_CONFIG = FLASH_ERASE;
  for (size_t i = 0; i < n && code == 0; i += PAGE_BYTES) {
    NVMC_ERASEPAGE = (uint32_t)(uintptr_t)(start + i);
    code = ready();
  }
  NVMC_CONFIG = FLASH_READ;
  return code;
}

int board_flash_program(uint8_t *at, const uint8_t *bytes, size_t n) {
  int code = 0;
  NVMC_CONFIG = FLASH_WRITE;
  for (size_t i = 0; i < n && code == 0; i += 4) {
    uint32_t word = 0xFFFFFFFF;
    memcpy(&word, bytes + i, n - i < 4 ? n - i : 4);
    *(volatile uint32_t *)(at + i) = word;
    code = ready();
  }
  NVMC_CONFIG = FLASH_READ;
  return code;
}

int board_flash_read(uint8_t *to, const uint8_t *from, size_t n) {
  memcpy(to, from, n);
  return 0;
}
