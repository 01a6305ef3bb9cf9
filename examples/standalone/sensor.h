// sensor.h -- stands for a sensor driver and a log line.
#include <stddef.h>
#include <stdint.h>

// A window of 128 × 6 int8 values of one of the seven motions; returns which. Deterministic.
uint16_t sensor_read(int8_t *window, size_t bytes);

// Print a text and a number on the serial line.
void sensor_say(const char *text, int number);
