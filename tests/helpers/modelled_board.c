// modelled_board.c -- the trainer's session on a board that a test drives: it gives the line, the timer and the rates. Flash is memory.
#include "mcugrad_port.h"
#include "session.h"

#include <string.h>

enum { POOL_BYTES = 1 << 20, SLOT_BYTES = 1 << 20, CHECKPOINT_BYTES = 1 << 16 };

struct driver {
  size_t (*read)(uint8_t *bytes, size_t n);
  void (*write)(const uint8_t *bytes, size_t n);
  int (*baud)(uint32_t rate);
  void (*computed)(void); // the stopwatch stands: what it measured takes as long as the test says
};

static struct driver driver;
static struct mg_session session;
static size_t pool_bytes;
static _Alignas(16) uint8_t pool[POOL_BYTES], slot[SLOT_BYTES], checkpoints[MG_STORE_SLOTS][CHECKPOINT_BYTES];

void board_start(const struct driver *given, size_t bytes);
void board_poll(void);

void board_start(const struct driver *given, size_t bytes) {
  driver = *given;
  pool_bytes = bytes < POOL_BYTES ? bytes : POOL_BYTES;
  mg_session_init(&session);
}

void board_poll(void) {
  mg_session_poll(&session);
}

size_t mg_port_read(uint8_t *bytes, size_t n) {
  return driver.read(bytes, n);
}

void mg_port_write(const uint8_t *bytes, size_t n) {
  driver.write(bytes, n);
}

bool mg_port_baud(uint32_t rate) {
  return driver.baud(rate) != 0;
}

void mg_port_timer_start(void) {
}

uint64_t mg_port_timer_stop(void) {
  driver.computed();
  return 0;
}

struct mg_port_pool mg_port_pool(void) {
  return (struct mg_port_pool){pool, pool_bytes};
}

struct mg_port_slot mg_port_slot(void) {
  return (struct mg_port_slot){slot, SLOT_BYTES};
}

int mg_port_slot_erase(size_t bytes) {
  memset(slot, 0xFF, bytes);
  return 0;
}

int mg_port_slot_write(size_t offset, const uint8_t *bytes, size_t n) {
  memcpy(slot + offset, bytes, n);
  return 0;
}

static int erase(void *user, uint32_t n) {
  (void)user;
  memset(checkpoints[n], 0xFF, CHECKPOINT_BYTES);
  return 0;
}

static int program(void *user, uint32_t n, uint32_t offset, const uint8_t *bytes, uint32_t size) {
  (void)user;
  memcpy(checkpoints[n] + offset, bytes, size);
  return 0;
}

static int read_back(void *user, uint32_t n, uint32_t offset, uint8_t *bytes, uint32_t size) {
  (void)user;
  memcpy(bytes, checkpoints[n] + offset, size);
  return 0;
}

struct mg_store mg_port_store(void) {
  return (struct mg_store){CHECKPOINT_BYTES, NULL, erase, program, read_back};
}

struct mg_port_usage mg_port_usage(void) {
  return (struct mg_port_usage){0};
}
