// board.c -- host: a native process on a pseudo terminal.
//
// It opens the pty itself, prints the path of the other end as one line on stdout, and ends when its stdin closes or its
// parent dies. The kernel's pty buffer is the RX ring: it is never overrun, the writer waits. Stack use is not measured.
//
// The environment variable MCUGRAD_FLASH names a file that is its flash (plan slot, then two checkpoint slots), made where there
// is none: what is in it outlives the process. Without, flash is memory of the process.
#define _GNU_SOURCE
#include "mcugrad_port.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

enum { SLOT_BYTES = MG_FLASH_BYTES - MG_FIRMWARE_BYTES, FLASH_BYTES = SLOT_BYTES + MG_STORE_SLOTS * MG_CHECKPOINT_BYTES };

// Symbols of the linker's own script: only their addresses mean something.
extern uint8_t __data_start[], _end[];

static uint8_t *ram;  // of MG_RAM_BYTES; the pool is what stack and static data of a board would leave of it
static uint8_t *slot; // and the checkpoints behind it
static int line = -1;
static int line_other_end = -1; // held open: without it, the line hangs up whenever the host closes its side
static struct timespec started;

static void die(const char *what) {
  perror(what);
  exit(EXIT_FAILURE);
}

static uint8_t *memory(size_t bytes) {
  void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED)
    die("mmap");
  return base;
}

static uint8_t *flash_memory(void) {
  const char *path = getenv("MCUGRAD_FLASH");
  if (path == NULL)
    return memory(FLASH_BYTES);
  int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0 || ftruncate(file, FLASH_BYTES) != 0)
    die(path);
  void *base = mmap(NULL, FLASH_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (base == MAP_FAILED)
    die(path);
  (void)close(file);
  return base;
}

static size_t static_bytes(void) {
  return (size_t)((uintptr_t)_end - (uintptr_t)__data_start);
}

static void open_line(void) {
  line = posix_openpt(O_RDWR | O_NOCTTY);
  if (line < 0 || grantpt(line) != 0 || unlockpt(line) != 0)
    die("pty");
  const char *path = ptsname(line);
  if (path == NULL || (line_other_end = open(path, O_RDWR | O_NOCTTY)) < 0)
    die("pty");
  struct termios raw;
  if (tcgetattr(line_other_end, &raw) != 0)
    die("tcgetattr");
  cfmakeraw(&raw);
  if (tcsetattr(line_other_end, TCSANOW, &raw) != 0)
    die("tcsetattr");
  printf("%s\n", path);
  fflush(stdout);
}

void mg_port_init(void) {
  (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
  ram = memory(MG_RAM_BYTES);
  slot = flash_memory();
  open_line();
}

// Wait for `events` on the line. Ends the process where stdin has closed.
static void await(short events) {
  struct pollfd fds[] = {{.fd = line, .events = events}, {.fd = STDIN_FILENO, .events = POLLIN}};
  if (poll(fds, 2, -1) < 0 && errno != EINTR)
    die("poll");
  char dropped[64];
  if (fds[1].revents != 0 && read(STDIN_FILENO, dropped, sizeof dropped) <= 0)
    exit(EXIT_SUCCESS);
}

size_t mg_port_read(uint8_t *bytes, size_t n) {
  struct pollfd fd = {.fd = line, .events = POLLIN};
  if (poll(&fd, 1, 0) <= 0 || (fd.revents & POLLIN) == 0)
    return 0;
  ssize_t got = read(line, bytes, n);
  return got > 0 ? (size_t)got : 0;
}

void mg_port_write(const uint8_t *bytes, size_t n) {
  while (n != 0) {
    await(POLLOUT);
    ssize_t put = write(line, bytes, n);
    if (put < 0 && errno != EINTR && errno != EAGAIN)
      die("write");
    if (put > 0) {
      bytes += put;
      n -= (size_t)put;
    }
  }
}

void mg_port_idle(void) {
  await(POLLIN);
}

// A pseudo terminal has no rate: all are the same.
bool mg_port_baud(uint32_t rate) {
  return rate != 0;
}

void mg_port_timer_start(void) {
  (void)clock_gettime(CLOCK_MONOTONIC, &started);
}

uint64_t mg_port_timer_stop(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  int64_t ns = (int64_t)(now.tv_sec - started.tv_sec) * 1000000000 + (now.tv_nsec - started.tv_nsec);
  return (uint64_t)ns / 1000;
}

struct mg_port_pool mg_port_pool(void) {
  return (struct mg_port_pool){ram, (MG_RAM_BYTES - MG_STACK_BYTES - static_bytes()) & ~(size_t)15};
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

static uint8_t *checkpoint(uint32_t n) {
  return slot + SLOT_BYTES + (size_t)n * MG_CHECKPOINT_BYTES;
}

static int erase_checkpoint(void *user, uint32_t n) {
  (void)user;
  memset(checkpoint(n), 0xFF, MG_CHECKPOINT_BYTES);
  return 0;
}

static int program_checkpoint(void *user, uint32_t n, uint32_t offset, const uint8_t *bytes, uint32_t size) {
  (void)user;
  memcpy(checkpoint(n) + offset, bytes, size);
  return 0;
}

static int read_checkpoint(void *user, uint32_t n, uint32_t offset, uint8_t *bytes, uint32_t size) {
  (void)user;
  memcpy(bytes, checkpoint(n) + offset, size);
  return 0;
}

struct mg_store mg_port_store(void) {
  return (struct mg_store){MG_CHECKPOINT_BYTES, NULL, erase_checkpoint, program_checkpoint, read_checkpoint};
}

struct mg_port_usage mg_port_usage(void) {
  return (struct mg_port_usage){.static_ram_bytes = (uint32_t)static_bytes()};
}
