// main.c -- a device that learns from its own sensor: no host, no protocol.
#include "mcugrad.h"
#include "mcugrad_port.h"
#include "plan.h" // mcugrad build MODEL --train … --out DIR
#include "sensor.h"

static _Alignas(16) uint8_t memory[MCUGRAD_MEMORY_BYTES];

int main(void) {
  mg_port_init();
  struct mg_ctx net;
  if (mg_init(&net, mcugrad_plan, sizeof mcugrad_plan, memory, sizeof memory) != MG_OK) {
    sensor_say("plan refused, error", net.fault.code);
    return 1;
  }
  for (int round = 0; round < 4; round++) {
    int correct = 0;
    for (int i = 0; i < 100; i++) {
      const struct mg_result *result;
      uint16_t label = sensor_read(mg_sample(&net), mg_sample_bytes(&net));
      if (mg_train(&net, label, 0.02f, 0.1f, &result) != MG_OK) {
        sensor_say("step refused, error", net.fault.code);
        return 2;
      }
      correct += result->argmax == label;
    }
    sensor_say("predicted before learning, of 100:", correct);
  }
  sensor_say("done", 0);
  for (;;)
    mg_port_idle();
}
