// sensor.c -- seven made-up motions: a triangle wave per class and channel, in random phase, with noise.
#include "sensor.h"

#include "mcugrad_port.h"

#include <string.h>

enum { CHANNELS = 6, CLASSES = 7 };

static uint32_t draw(void) {
  static uint32_t state = 1;
  state = state * 1664525u + 1013904223u;
  return state >> 16;
}

static int triangle(uint32_t phase) {
  int p = (int)(phase & 255u);
  return p < 128 ? p - 64 : 191 - p;
}

uint16_t sensor_read(int8_t *window, size_t bytes) {
  uint32_t label = draw() % CLASSES, start = draw();
  for (size_t i = 0; i < bytes; i++) {
    uint32_t t = (uint32_t)i / CHANNELS, channel = (uint32_t)i % CHANNELS;
    int wave = triangle(start + t * (3u + 2u * label) + channel * 16u * (label + 1u));
    window[i] = (int8_t)(wave + (int)(draw() % 17u) - 8);
  }
  return (uint16_t)label;
}

void sensor_say(const char *text, int number) {
  char digits[12];
  size_t n = sizeof digits;
  uint32_t rest = number < 0 ? 0u - (uint32_t)number : (uint32_t)number;
  digits[--n] = '\n';
  do {
    digits[--n] = (char)('0' + rest % 10u);
    rest /= 10u;
  } while (rest != 0);
  if (number < 0)
    digits[--n] = '-';
  mg_port_write((const uint8_t *)text, strlen(text));
  mg_port_write((const uint8_t *)" ", 1);
  mg_port_write((const uint8_t *)digits + n, sizeof digits - n);
}
