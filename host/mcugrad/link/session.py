"""The host's end of the link: go-back-N over frames, typed commands on top (SPEC.md section 4).

Loss is repaired in one way only. A NAK, a gap in the replies or a silence makes the host send SYNC and nothing else; the
device's answer proves that all older bytes are out of the line, and then everything unanswered is sent again, once. So
repeats never pile up in the device's ring, and the device answers a command that it has executed before from its cache.
"""

from __future__ import annotations

import contextlib
import secrets
import struct
import time
import zlib
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from mcugrad.errors import DataError, DeviceError, FitError, LinkError, PlanError
from mcugrad.link import frame as fr
from mcugrad.link.one_build import require_one_build
from mcugrad.link.protocol import (
    DATA_ALIGN,
    ERR,
    LOST_BYTES,
    NAK,
    OUTPUT_BYTES,
    PREDICT_HEAD,
    PROTOCOL,
    REPLY,
    START_BAUD,
    Caps,
    Checkpoints,
    Command,
    Loaded,
    PredictReply,
    Region,
    Sample,
    Stats,
    TrainReply,
    error_of,
    pack_train,
    parse_caps,
    parse_checkpoints,
    parse_predict,
    parse_train,
    sized,
)
from mcugrad.link.transport import RatedLine, Transport
from mcugrad.plan.sign import signed

MAX_RESENDS = 16
_TRIAL_S = 0.3
"""Within this time a line must carry a frame both ways at a new rate."""
_SILENT_SYNCS = 3
"""After so many without an answer at a negotiated rate, both ends go back to START_BAUD."""
_WAKE = bytes(LOST_BYTES + 64)
"""No frame at another rate than the device's, which they bring back to START_BAUD; delimiters at START_BAUD, where they mean nothing."""
_GUARD = bytes(64)
"""Delimiters that may be lost while the device changes its rate."""
_TRIAL_PATTERNS = (bytes(range(256)), b"\x55\xaa" * 256, b"\xff" * 200 + bytes(200))


class _ResetError(LinkError):
    """The device has no session: it was reset."""


@dataclass(frozen=True, slots=True)
class _Sent:
    seq: int
    command: Command
    code: bytes


@dataclass(frozen=True, slots=True)
class _Answer:
    command: Command
    frame: fr.Frame


class Session:
    """One conversation with a device. Call ``hello`` first.

    ``deadline_s`` bounds every wait for progress; ``retry_s`` is the first silence after which the line is probed. ``clock`` gives seconds.
    ``bytes_sent`` and ``bytes_received`` count all bytes on the wire, repeats included.
    """

    def __init__(
        self, transport: Transport, deadline_s: float = 30.0, retry_s: float = 0.5, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._transport = transport
        self._deadline_s = deadline_s
        self._retry_s = retry_s
        self._clock = clock
        self._rate = START_BAUD
        self._silent_syncs = 0
        self._decoder = fr.Decoder()
        self._frames: deque[fr.Frame] = deque()
        self._pending: deque[_Sent] = deque()
        self._answers: deque[_Answer] = deque()
        self._caps: Caps | None = None
        self._loaded: Loaded | None = None
        self._nonce = 0
        self._seq = 0
        self._token = 0
        self._syncing = False
        self._resends = 0
        self._alive_at = 0.0
        self._probe_at = 0.0
        self._probe_s = retry_s
        self.bytes_sent = 0
        self.bytes_received = 0

    # ---- commands ------------------------------------------------------------------------------------------------------

    @property
    def caps(self) -> Caps:
        """What ``hello`` has learned."""
        if self._caps is None:
            raise LinkError("the session is not open", "call hello first")
        return self._caps

    @property
    def damaged_frames(self) -> int:
        """Frames from the device, boot banners included, that were dropped."""
        return self._decoder.damaged

    def hello(self) -> Caps:
        """Open or reopen the session. A loaded plan and its STATE stay as they are.

        Raises LinkError where nothing answers in time, DeviceError where the device speaks another protocol.
        """
        self._pending.clear()
        self._answers.clear()
        self._frames.clear()
        self._syncing = False
        self._take_rate(START_BAUD)
        self._nonce = secrets.randbits(32) | 1
        body = struct.pack("<IH", self._nonce, PROTOCOL)
        hello = b"\0" + fr.encode(fr.Frame(Command.HELLO, 0, body))
        end = self._clock() + self._deadline_s
        retry_s = self._retry_s
        while self._clock() < end:
            self._write(hello)
            again = min(self._clock() + retry_s, end)
            while (frame := self._next_frame(again)) is not None:
                if frame.type == ERR and frame.seq == 0:
                    raise error_of(frame.body)
                if frame.type == Command.HELLO | REPLY and frame.body[:4] == body[:4]:
                    self._caps = parse_caps(frame.body)
                    self._seq = 1
                    self._resends = 0
                    return self._caps
            retry_s = min(2 * retry_s, 2.0)
            if isinstance(self._transport, RatedLine) and self._deadline_s > 2:
                self._write(_WAKE)  # an earlier session may have left the device at another rate
        raise LinkError(
            f"{self._transport.name} did not answer HELLO within {self._deadline_s:.1f} s",
            "is the trainer firmware on this board, and is this its port and baud rate? reset the board and try again",
        )

    def load_plan(self, plan: bytes) -> Loaded:
        """Write a plan into the board's slot and make it the current one, STATE at its start.

        Raises FitError where it is larger than the slot or the pool, PlanError where it and the firmware are of different builds,
        DeviceError (exit 6) where the device refuses it.
        """
        require_one_build(self.caps, plan)
        plan = signed(plan)
        if len(plan) > self.caps.slot_bytes:
            raise FitError(
                f"the plan has {len(plan):,} bytes, the plan slot of {self.caps.board} has {self.caps.slot_bytes:,}",
                "pick a smaller model or another board",
            )
        self._call(Command.LOAD_BEGIN, struct.pack("<I", len(plan)))
        chunk = (self.caps.max_body_bytes - 4) // DATA_ALIGN * DATA_ALIGN
        self._stream(Command.LOAD_DATA, plan, 0, chunk)
        body = self._call(Command.LOAD_END, struct.pack("<I", zlib.crc32(plan)))
        self._loaded = Loaded(*struct.unpack("<IIIII", sized(body, 20)))
        return self._loaded

    def adopt(self, loaded: Loaded) -> None:
        """Go on with the plan that the device has loaded, its STATE as it is. Raises PlanError where it is not ``loaded``."""
        if self.caps.plan_crc != loaded.plan_crc:
            raise PlanError(f"the board has plan {self.caps.plan_crc:08x}, not {loaded.plan_crc:08x}", "load the plan again")
        self._loaded = replace(loaded, ahead_bytes=self.caps.ahead_bytes)

    def change_rate(self, rate: int) -> bool:
        """Take the line to ``rate`` and prove there, with long frames both ways, that it carries them; else back to START_BAUD.

        False where host, line or device cannot. Opens a new session on the way back: call it before ``load_plan``.
        """
        line = self._transport
        if not isinstance(line, RatedLine) or not line.set_baud(rate):
            return False
        line.set_baud(self._rate)
        body = struct.pack("<I", rate)
        try:
            self._call(Command.BAUD, body)
        except DeviceError:
            return False
        self._take_rate(rate)
        self._write(_GUARD)
        if self._carries(body):
            return True
        self._take_rate(START_BAUD)
        self._write(_WAKE)
        self.hello()
        return False

    def _carries(self, body: bytes) -> bool:
        damaged, deadline_s, self._deadline_s = self._decoder.damaged, self._deadline_s, _TRIAL_S
        room = self.caps.max_body_bytes - len(body)
        try:
            echoes = [self._call(Command.BAUD, body + p[:room]) == body + p[:room] for p in _TRIAL_PATTERNS]
        except LinkError:
            return False
        finally:
            self._deadline_s = deadline_s
        return all(echoes) and self._decoder.damaged == damaged

    @property
    def nonce(self) -> int:
        """Names this session."""
        return self._nonce

    @property
    def rate(self) -> int:
        """The line's rate in baud, where it has one."""
        return self._rate

    def sample(self, data: bytes | npt.NDArray[np.int8]) -> None:
        """Write the model's input, and what follows it into the target of a regression loss: for one ``train`` or ``predict``."""
        self._settle()
        self._post_sample(data)
        self._drain()

    def train(self, label: int, lr: float, skip: float) -> TrainReply:
        """One training step on the last sample, which it uses up. ``skip``: largest |dL/dlogit| under which nothing is learned."""
        return parse_train(self._call(Command.TRAIN, pack_train(label, lr, skip)))

    def train_stream(
        self, samples: Iterable[Sample], skip: float, commits: Container[int] = (), saves: Container[int] = (), first: int = 0
    ) -> Iterator[TrainReply]:
        """Train on one sample after the other; the next ones travel while the device computes.

        Yields one reply per sample, in order, as they come. Closing the iterator early loses nothing: what is under way
        is trained, its replies are dropped. Where the device has room for a second sample it takes that while it computes,
        however many frames it has. ``commits``: the samples, counted from ``first``, behind which a micro-batch ends.
        ``saves``: those behind which the device keeps a checkpoint (and its commit, if there is one, comes first).
        """
        self._settle()
        ahead = self._loaded is not None and self._loaded.ahead_bytes > 0
        begun, k = False, first
        try:
            for k, (data, label, lr) in enumerate(samples, first):
                self._post_sample(data)
                if begun:
                    self._post_end(k - 1, commits)
                    yield from self._save_behind(k - 1, saves)
                begun = ahead
                self._post(Command.START if ahead else Command.TRAIN, pack_train(label, lr, skip))
                if not ahead:
                    self._post_commit(k, commits)
                    yield from self._save_behind(k, saves)
                yield from self._trained_so_far()
        except GeneratorExit:
            if begun:
                self._post_end(k, commits)
            raise
        if begun:
            self._post_end(k, commits)
            yield from self._save_behind(k, saves)
        yield from self._trained()

    def _post_end(self, k: int, commits: Container[int]) -> None:
        self._post(Command.RESULT, b"")
        self._post_commit(k, commits)

    def _post_commit(self, k: int, commits: Container[int]) -> None:
        if k in commits:
            self._post(Command.COMMIT, b"")

    def _save_behind(self, k: int, saves: Container[int]) -> Iterator[TrainReply]:
        if k in saves:
            yield from self._trained()  # nothing travels while flash is written: some chips stand still then, interrupts too
            self._post(Command.SAVE, b"")
            yield from self._trained()

    def _trained(self) -> Iterator[TrainReply]:
        while self._pending:
            self._step()
            yield from self._trained_so_far()

    def _trained_so_far(self) -> Iterator[TrainReply]:
        return map(parse_train, self._results(Command.TRAIN, Command.RESULT))

    def commit(self) -> int:
        """The end of a micro-batch: the summed steps go into the weights. Returns the ticks that mg_commit took."""
        (ticks,) = struct.unpack("<Q", sized(self._call(Command.COMMIT, b""), 8))
        return int(ticks)

    def predict(self) -> PredictReply:
        """Run the model on the last sample, which it uses up."""
        return self._whole_output(self._call(Command.PREDICT, b""))

    def predict_stream(self, samples: Iterable[bytes | npt.NDArray[np.int8]]) -> Iterator[PredictReply]:
        """Predict one sample after the other, pipelined like ``train_stream`` where the outputs are short enough to come along."""
        left = iter(samples)
        for data in left:
            self.sample(data)
            reply = self.predict()
            yield reply
            if len(reply.output) <= OUTPUT_BYTES:
                break
        for data in left:
            self._post_sample(data)
            self._post(Command.PREDICT, b"")
            yield from map(parse_predict, self._results(Command.PREDICT))
        while self._pending:
            self._step()
            yield from map(parse_predict, self._results(Command.PREDICT))

    def read(self, region: Region, offset: int, n: int) -> bytes:
        """``n`` bytes of a region, from ``offset``."""
        out = bytearray()
        while len(out) < n:
            want = min(n - len(out), self.caps.max_body_bytes)
            body = self._call(Command.READ, struct.pack("<BxxxII", region, offset + len(out), want))
            out += sized(body, want)
        return bytes(out)

    def read_state(self) -> bytes:
        """All of STATE: a checkpoint."""
        return self.read(Region.STATE, 0, self.loaded.state_bytes)

    def write_state(self, state: bytes) -> None:
        """Restore a checkpoint of the loaded plan."""
        if len(state) != self.loaded.state_bytes:
            raise DataError(
                f"the checkpoint has {len(state):,} bytes, STATE of the loaded plan has {self.loaded.state_bytes:,}",
                "use a checkpoint of this plan",
            )
        self._settle()
        self._stream(Command.WRITE_STATE, state, 0, self.caps.max_body_bytes - 4)

    @property
    def loaded(self) -> Loaded:
        """The plan that ``load_plan`` of this session has loaded."""
        if self._loaded is None:
            raise LinkError("no plan was loaded in this session", "call load_plan first")
        return self._loaded

    def save(self) -> int:
        """Write STATE into the device's flash; a power cut meanwhile leaves the checkpoint before. Returns the sequence number.

        Raises FitError where the device has no room for it, DeviceError where its flash fails.
        """
        (sequence,) = struct.unpack("<I", sized(self._call(Command.SAVE, b""), 4))
        return int(sequence)

    def restore(self) -> int:
        """STATE from the newest checkpoint in the device's flash. Returns its sequence number.

        Raises DeviceError (exit 6) where there is none, or where it is another plan's: STATE is then as it was.
        """
        (sequence,) = struct.unpack("<I", sized(self._call(Command.RESTORE, b""), 4))
        return int(sequence)

    def checkpoints(self) -> Checkpoints:
        """What the device keeps in its checkpoint slots."""
        return parse_checkpoints(self._call(Command.CHECKPOINTS, b""))

    def restart(self) -> Caps:
        """Have the device do what it does after power-on, then open the session again.

        A plan in its slot is loaded; STATE is that of the newest checkpoint, if it is this plan's, else the plan's own.
        """
        with contextlib.suppress(_ResetError):  # the reply was lost: no session is what follows it
            self._call(Command.RESTART, b"")
        return self.hello()

    def reset(self) -> None:
        """STATE as the plan starts it."""
        self._call(Command.RESET, b"")

    def trace_on(self) -> None:
        """Keep a CRC-32 of every step's outputs from now on (Region.TRACE, one u32 per step). Raises FitError without room for it."""
        self._call(Command.TRACE, b"\1")

    def profile_on(self) -> None:
        """Keep the ticks of every step from now on, where ``trace_on`` keeps its CRC.

        TRAIN and PREDICT do not count the ticks of the whole meanwhile.
        """
        self._call(Command.TRACE, b"\2")

    def trace_off(self) -> None:
        """Stop tracing or profiling, and free the buffer."""
        self._call(Command.TRACE, b"\0")

    def stats(self) -> Stats:
        """Memory use as measured on the device."""
        return Stats(*struct.unpack("<8I", sized(self._call(Command.STATS, b""), 32)))

    def bye(self) -> None:
        """End the session; the plan and STATE stay on the device."""
        self._call(Command.BYE, b"")
        self._caps = None

    # ---- pipeline ------------------------------------------------------------------------------------------------------

    def _call(self, command: Command, body: bytes) -> bytes:
        self._settle()
        self._post(command, body)
        while not self._answers:
            self._step()
        return _body_of(self._answers.popleft())

    def _stream(self, command: Command, data: bytes, offset: int, chunk_bytes: int) -> None:
        for at in range(0, len(data), chunk_bytes):
            self._post(command, struct.pack("<I", offset + at) + data[at : at + chunk_bytes])
            self._results(command)
        self._drain()

    def _post_sample(self, data: bytes | npt.NDArray[np.int8]) -> None:
        raw = data if isinstance(data, bytes) else np.ascontiguousarray(data, dtype=np.int8).tobytes()
        chunk = self.caps.max_body_bytes - 4
        for at in range(0, len(raw), chunk):
            self._post(Command.SAMPLE, struct.pack("<I", at) + raw[at : at + chunk])

    def _results(self, *commands: Command) -> list[bytes]:
        """Bodies of the answers so far that belong to ``commands``. An error ends the pipeline and is raised.

        Results that stand before the error are dropped with it: the caller learns the first error.
        """
        out: list[bytes] = []
        while self._answers:
            answer = self._answers.popleft()
            if answer.frame.type == ERR:
                self._settle()
                raise error_of(answer.frame.body)
            if answer.command in commands:
                out.append(answer.frame.body)
        return out

    def _drain(self) -> None:
        while self._pending:
            self._step()
            self._results(Command.SAMPLE)

    def _settle(self) -> None:
        """Wait for what an abandoned pipeline has under way; its answers are dropped."""
        while self._pending or self._syncing:
            self._step()
        self._answers.clear()

    def _post(self, command: Command, body: bytes) -> None:
        caps = self.caps
        sent = _Sent(self._seq, command, fr.encode(fr.Frame(command, self._seq, body)))
        while self._syncing or (
            self._pending
            and (
                len(self._pending) >= caps.window_frames or sum(len(s.code) for s in self._pending) + len(sent.code) > caps.rx_window_bytes
            )
        ):
            self._step()
        if not self._pending:
            self._progress()
        self._pending.append(sent)
        self._seq = (self._seq + 1) & 0xFF
        self._write(sent.code)

    # ---- repair --------------------------------------------------------------------------------------------------------

    def _step(self) -> None:
        """Wait for one event: a frame, a silence, or the deadline (LinkError)."""
        end = self._alive_at + self._deadline_s
        frame = self._next_frame(min(end, self._probe_at))
        if frame is not None:
            self._take(frame)
        elif self._clock() >= end:
            self._fail(f"did not answer {self._awaited()} within {self._deadline_s:.1f} s")
        else:
            self._sync()

    def _take(self, frame: fr.Frame) -> None:
        if frame.type == NAK:
            self._take_nak(frame.body)
            return
        if not self._pending:
            return
        first = self._pending[0]
        ahead = (frame.seq - first.seq) & 0xFF
        if ahead == 0 and frame.type in (first.command | REPLY, ERR):
            self._pending.popleft()
            self._answers.append(_Answer(first.command, frame))
            self._progress()
        elif ahead < len(self._pending) and not self._syncing:
            self._sync()

    def _take_nak(self, body: bytes) -> None:
        if len(body) != 6:
            return
        _expected, token, nonce = struct.unpack("<BBI", body)
        if nonce == 0:
            self._fail("has lost the session: the board was reset", _ResetError)
        if nonce != self._nonce:
            self._fail("has lost the session: another program talks to it")
        if not self._syncing:
            if self._pending:
                self._sync()
        elif token == self._token:
            self._syncing = False
            self._silent_syncs = 0
            self._probe_s = self._retry_s
            self._probe_at = self._clock() + self._probe_s
            self._resend()

    def _sync(self) -> None:
        self._syncing = True
        self._token = self._token % 255 + 1
        self._probe_at = self._clock() + self._probe_s
        self._probe_s *= 2
        self._silent_syncs += 1
        if self._silent_syncs > _SILENT_SYNCS and self._rate != START_BAUD:
            self._take_rate(START_BAUD)
            self._write(_WAKE)
        self._write(b"\0" + fr.encode(fr.Frame(Command.SYNC, 0, bytes((self._token,)))))

    def _resend(self) -> None:
        if not self._pending:
            return
        self._resends += 1
        if self._resends > MAX_RESENDS:
            self._fail(f"did not take {self._awaited()} in {MAX_RESENDS} attempts")
        for sent in self._pending:
            self._write(sent.code)

    def _progress(self) -> None:
        now = self._clock()
        self._alive_at = now
        self._probe_s = self._retry_s
        self._probe_at = now + self._retry_s
        self._resends = 0

    def _awaited(self) -> str:
        if not self._pending:
            return "SYNC"
        rest = len(self._pending) - 1
        return self._pending[0].command.name + (f" (and {rest} frames behind it)" if rest else "")

    def _fail(self, what: str, kind: type[LinkError] = LinkError) -> NoReturn:
        self._pending.clear()
        self._syncing = False
        raise kind(f"{self._transport.name} {what}", "reset the board and try again; a slow board needs a longer deadline")

    def _take_rate(self, rate: int) -> None:
        if rate != self._rate and isinstance(self._transport, RatedLine):
            self._transport.set_baud(rate)
            self._rate = rate
            self._silent_syncs = 0

    # ---- bytes ---------------------------------------------------------------------------------------------------------

    def _write(self, data: bytes) -> None:
        self.bytes_sent += len(data)
        self._transport.write(data)

    def _next_frame(self, until: float) -> fr.Frame | None:
        while not self._frames:
            left = until - self._clock()
            if left <= 0:
                return None
            data = self._transport.read(left)
            self.bytes_received += len(data)
            self._frames.extend(self._decoder.push(data))
        return self._frames.popleft()

    def _whole_output(self, body: bytes) -> PredictReply:
        short = parse_predict(body)
        _argmax, size, offset, ticks = PREDICT_HEAD.unpack_from(body)
        if size == len(short.output):
            return short
        return PredictReply(short.argmax, np.frombuffer(self.read(Region.IO, offset, size), np.int8), ticks)


def _body_of(answer: _Answer) -> bytes:
    if answer.frame.type == ERR:
        raise error_of(answer.frame.body)
    return answer.frame.body
