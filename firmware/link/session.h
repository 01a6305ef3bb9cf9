// session.h -- the device's end of the link: one request, one reply (SPEC.md section 4).
//
// Everything that arrives is hostile: each command checks its lengths, offsets, regions and values here, whatever the host
// has checked before. A command is executed once; a repeat of it is answered from the replies kept here.
#ifndef MG_SESSION_H
#define MG_SESSION_H

#include "frame.h"
#include "mcugrad.h"

enum {
  MG_LINK_PROTOCOL = 2,
  MG_LINK_WINDOW_FRAMES = 8,        // replies kept, and so the frames that a host may have unanswered
  MG_LINK_KEPT_BODY_BYTES = 88,     // a larger reply is kept only until the next command
  MG_LINK_OUTPUT_BYTES = 64,        // of the output, in a PREDICT reply
  MG_LINK_SYNC_RESERVE_BYTES = 128, // of the RX ring, outside the window: for SYNC
  MG_LINK_DATA_ALIGN_BYTES = 32,    // of LOAD_DATA: the unit in which flash is programmed
  MG_LINK_PAINT = 0x55,             // in ARENA before the first step
  MG_LINK_START_BAUD = 115200,      // rate of a line after reset
  MG_LINK_LOST_BYTES = 4096,        // received at another rate without a good frame among them: back to MG_LINK_START_BAUD
};

// Largest body, either way: 4 bytes of offset and the data. Two such frames fit the window of a small RX ring, so that one
// travels while the other is executed; more than 1,032 bytes gain nothing.
#define MG_LINK_BODY_BYTES (MG_RX_RING_BYTES < 2248 ? MG_RX_RING_BYTES / 2 - 92 : 1032)
_Static_assert(MG_LINK_BODY_BYTES >= 132, "CAPS fits a body; rx_ring_bytes of board.toml is at least 448");

// Frame types. A reply is the command's type | 0x80, or one of the last two.
enum mg_link_type {
  MG_LINK_HELLO = 0x01,
  MG_LINK_SYNC = 0x02,
  MG_LINK_BAUD = 0x03,
  MG_LINK_LOAD_BEGIN = 0x10,
  MG_LINK_LOAD_DATA = 0x11,
  MG_LINK_LOAD_END = 0x12,
  MG_LINK_SAMPLE = 0x20,
  MG_LINK_TRAIN = 0x21,
  MG_LINK_PREDICT = 0x22,
  MG_LINK_COMMIT = 0x23,
  MG_LINK_START = 0x24,
  MG_LINK_RESULT = 0x25,
  MG_LINK_READ = 0x30,
  MG_LINK_WRITE_STATE = 0x31,
  MG_LINK_RESET = 0x32,
  MG_LINK_TRACE = 0x33,
  MG_LINK_STATS = 0x34,
  MG_LINK_SAVE = 0x38,
  MG_LINK_RESTORE = 0x39,
  MG_LINK_CHECKPOINTS = 0x3A,
  MG_LINK_RESTART = 0x3B,
  MG_LINK_BYE = 0x3F,
  MG_LINK_REPLY = 0x80,
  MG_LINK_ERR = 0xFE,
  MG_LINK_NAK = 0xFF,
};

// Errors of the link; the codes of enum mg_err travel in the same field. In brackets: value and limit.
enum mg_link_err {
  MG_LINK_ERR_PROTOCOL = -64,   // HELLO of another protocol version            [version, version known]
  MG_LINK_ERR_SESSION = -65,    // a command before HELLO                       [type, 0]
  MG_LINK_ERR_TYPE = -66,       // no such command                              [type, 0]
  MG_LINK_ERR_LENGTH = -67,     // a body of the wrong length                   [bytes, bytes expected]
  MG_LINK_ERR_NO_PLAN = -68,    // a command that needs a loaded plan           [type, 0]
  MG_LINK_ERR_SLOT = -69,       // a plan of 0 bytes, or larger than the slot   [bytes, bytes of the slot]
  MG_LINK_ERR_ORDER = -70,      // LOAD_DATA or LOAD_END out of place           [offset, offset expected]
  MG_LINK_ERR_FLASH = -71,      // the plan slot did not take the bytes         [offset, 0]
  MG_LINK_ERR_TRANSFER = -72,   // the slot's bytes differ from what was sent   [CRC in the slot, CRC sent]
  MG_LINK_ERR_REGION = -73,     // no such region                               [region, regions]
  MG_LINK_ERR_RANGE = -74,      // bytes outside their region                   [end, bytes of the region]
  MG_LINK_ERR_SAMPLE = -75,     // PREDICT before the whole sample, TRAIN before its target too [bytes so far, bytes needed]
  MG_LINK_ERR_NO_TRACE = -76,   // READ of the trace while it is off            [0, 0]
  MG_LINK_ERR_REPLAY = -77,     // a repeat of a command whose reply is gone    [seq, seq expected]
  MG_LINK_ERR_BAUD = -78,       // a rate that the line cannot have             [rate, rate as it is]
  MG_LINK_ERR_RESULT = -79,     // RESULT without START                         [0, 0]
  MG_LINK_ERR_KEY = -80,        // a plan without a signature by this firmware's key [0, 0]
};

struct mg_link_kept {
  uint8_t seq;
  uint8_t n; // 0: too large, or none
  uint8_t frame[MG_FRAME_OVERHEAD_BYTES + MG_LINK_KEPT_BODY_BYTES];
};

enum mg_link_progress { MG_LINK_IDLE = 0, MG_LINK_BEGUN, MG_LINK_RUNNING, MG_LINK_DONE };

// The training step of START: computed behind its reply, fetched by RESULT.
struct mg_link_step {
  uint8_t progress; // enum mg_link_progress
  uint16_t label;
  float lr, skip;
  const struct mg_result *result;
  uint64_t ticks;
  struct mg_fault fault; // code MG_OK: result is good
};

struct mg_session {
  struct mg_ctx ctx;
  bool loaded; // ctx is good
  bool restart; // when the reply is out
  uint32_t restored; // sequence of the checkpoint that STATE began with at the last start; 0: none

  struct mg_frame_decoder decoder;
  uint8_t rx[MG_FRAME_OVERHEAD_BYTES + MG_LINK_BODY_BYTES];
  uint8_t tx[MG_FRAME_OVERHEAD_BYTES + MG_LINK_BODY_BYTES]; // the last reply
  uint32_t tx_bytes;                                       // its head and body
  uint8_t chunk[64]; // out of the RX ring
  uint8_t chunk_at, chunk_bytes;
  uint32_t waiting; // bytes of the frame in rx that waits for the step under way; 0: none
  struct mg_link_kept kept[MG_LINK_WINDOW_FRAMES];

  bool open;
  uint32_t nonce;   // of the host, names the session
  uint8_t expected; // seq of the next command
  bool nak_sent;    // since the last good command
  uint32_t damaged_frames;
  uint32_t baud, next_baud; // as it is; behind the reply under way, 0: the same
  uint32_t lost_bytes;      // since the last good frame

  bool loading;
  uint32_t load_bytes, load_at;
  uint32_t sample_at;   // bytes of the sample, and of the target behind it, that have come
  uint8_t *ahead;       // they wait here for their step, in the pool behind the plan's memory; NULL: no room, they go where the plan reads them
  struct mg_link_step step;
  void (*between)(struct mg_session *s); // its operators, while it is computed
  uint32_t state_id; // nonce of the session in which STATE was last set as a whole: LOAD_END, RESET, WRITE_STATE, RESTORE; 0: none
  uint32_t changes;  // TRAIN, START and COMMIT since then
  uint32_t *trace;      // CRC-32 or ticks per step, in the pool behind the plan's memory; NULL: off
  uint32_t trace_steps;
};

// What a trace keeps of each step.
enum mg_link_trace { MG_LINK_TRACE_OFF = 0, MG_LINK_TRACE_CRC = 1, MG_LINK_TRACE_TICKS = 2 };

// A request inside its frame, and where its reply goes.
struct mg_link_call {
  uint8_t type;
  const uint8_t *body;
  uint32_t body_bytes;
  uint8_t *reply;       // room for MG_LINK_BODY_BYTES
  uint32_t reply_bytes; // set by the command
  struct mg_fault fault;
};

// Takes a plan that is already in the slot, if there is one, and then its newest checkpoint, if there is one.
void mg_session_init(struct mg_session *s);

// Take what has arrived, execute and answer. Returns when the RX ring is empty.
void mg_session_poll(struct mg_session *s);

// commands.c: execute one command of an open session. Returns MG_OK or the error that it has put into call->fault.
MG_NODISCARD int mg_session_execute(struct mg_session *s, struct mg_link_call *call);

// commands.c: compute the step that START has begun. `between` is called with `s` between its operators, where a sample can wait.
void mg_session_compute(struct mg_session *s, void (*between)(struct mg_session *s));

// commands.c: the reply to HELLO.
void mg_session_caps(struct mg_session *s, struct mg_link_call *call);

// commands.c: at the start, take STATE from the newest checkpoint of the plan, where there is one.
void mg_session_wake(struct mg_session *s);

// commands.c: verify the plan in the slot and make it the current one.
MG_NODISCARD int mg_session_take_plan(struct mg_session *s, uint32_t plan_bytes);

#endif
