// trainer -- the firmware that a host trains through the serial line.
#include "mcugrad_port.h"
#include "session.h"

int main(void) {
  static struct mg_session session;
  mg_port_init();
  mg_session_init(&session);
  for (;;) {
    mg_session_poll(&session);
    mg_port_idle();
  }
}
