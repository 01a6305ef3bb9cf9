"""Sessions with the real firmware on the host board: equal to the reference, with and without damage on the line."""

from __future__ import annotations

import itertools
import time
from collections.abc import Container, Iterator

import numpy as np
import pytest

from helpers.faulty_line import DeadTransport, FaultyTransport, Way
from helpers.tiny_plan import samples, tiny_plan
from mcugrad.errors import DeviceError, LinkError
from mcugrad.link import Region, Session, Transport
from mcugrad.link.frame import Frame, encode
from mcugrad.plan import Region as PlanRegion
from mcugrad.ref import Machine

SKIP = 0.01


def reference_state(plan: bytes, data: list[tuple[bytes, int, float]], commits: Container[int] = ()) -> bytes:
    """STATE after training in the reference, with a commit behind the samples ``commits``."""
    machine = Machine(plan)
    for k, (x, label, lr) in enumerate(data):
        machine.train(np.frombuffer(x, np.int8), label, lr, SKIP)
        if k in commits:
            machine.commit()
    return bytes(machine.regions[Region.STATE])


def test_a_stream_trains_like_the_reference(session: Session) -> None:
    plan, data = tiny_plan(40), samples(200, 40)
    session.load_plan(plan)
    replies = list(session.train_stream(data, SKIP))
    assert len(replies) == len(data)
    assert session.read_state() == reference_state(plan, data)
    machine = Machine(plan)
    first = machine.train(np.frombuffer(data[0][0], np.int8), data[0][1], data[0][2], SKIP)
    assert (replies[0].loss, replies[0].argmax) == (np.float32(first.loss), first.argmax)


@pytest.mark.parametrize("inputs", [1028, 1029, 5000])
def test_samples_of_several_frames(session: Session, inputs: int) -> None:
    plan, data = tiny_plan(inputs), samples(5, inputs)
    session.load_plan(plan)
    assert len(list(session.train_stream(data, SKIP))) == 5
    assert session.read_state() == reference_state(plan, data)


def test_the_window_is_never_exceeded(session: Session, line: Transport) -> None:
    sent: list[int] = []
    write = line.write

    def watch(data: bytes) -> None:
        sent.append(sum(len(s.code) for s in session._pending))
        write(data)

    line.write = watch  # type: ignore[method-assign]
    session.load_plan(tiny_plan(3000))
    list(session.train_stream(samples(20, 3000), SKIP))
    assert 2000 < max(sent) <= session.caps.rx_window_bytes


def test_one_step_and_the_stream_agree(session: Session) -> None:
    session.load_plan(tiny_plan())
    data = samples(20)
    streamed = [r.loss for r in session.train_stream(data, SKIP)]
    state = session.read_state()
    session.reset()
    single = []
    for x, label, lr in data:
        session.sample(x)
        single.append(session.train(label, lr, SKIP).loss)
    assert streamed == single and session.read_state() == state


@pytest.mark.parametrize("region", [Region.IO, Region.ARENA])
def test_a_step_uses_up_its_sample(session: Session, region: Region) -> None:
    """It may lie where later steps write."""
    plan, data = tiny_plan(sample=PlanRegion(region)), samples(2)
    session.load_plan(plan)
    for x, label, lr in data:
        session.sample(x)
        session.train(label, lr, SKIP)
        with pytest.raises(DeviceError, match="MG_LINK_ERR_SAMPLE: 0 bytes of the sample have come, 4 are needed"):
            session.train(label, lr, SKIP)
        with pytest.raises(DeviceError, match="MG_LINK_ERR_SAMPLE"):
            session.predict()
    assert session.read_state() == reference_state(plan, data)


def test_predict_is_the_output_of_the_reference(session: Session) -> None:
    plan, data = tiny_plan(), samples(10)
    session.load_plan(plan)
    machine = Machine(plan)
    expected = [machine.predict(np.frombuffer(x, np.int8)).copy() for x, _, _ in data]
    for reply, y in zip(session.predict_stream(x for x, _, _ in data), expected, strict=True):
        assert np.array_equal(reply.output, y.reshape(-1)) and reply.argmax == int(np.argmax(y))


def test_a_checkpoint_comes_back(session: Session) -> None:
    session.load_plan(tiny_plan(600))
    list(session.train_stream(samples(5, 600), SKIP))
    trained = session.read_state()
    session.reset()
    assert session.read_state() != trained
    session.write_state(trained)
    assert session.read_state() == trained


def test_an_abandoned_stream_leaves_the_session_usable(session: Session) -> None:
    session.load_plan(tiny_plan())
    stream = session.train_stream(((x, label, lr) for x, label, lr in samples(50)), SKIP)
    list(itertools.islice(stream, 3))
    stream.close()
    assert len(session.read_state()) == session.loaded.state_bytes


def test_the_trace_is_the_reference_s(session: Session) -> None:
    plan, data = tiny_plan(), samples(1)
    session.load_plan(plan)
    session.trace_on()
    session.sample(data[0][0])
    session.train(data[0][1], 0.02, 0.0)
    machine = Machine(plan)
    machine.tracing = True
    machine.train(np.frombuffer(data[0][0], np.int8), data[0][1], 0.02, 0.0)
    ours = np.frombuffer(session.read(Region.TRACE, 0, 24), "<u4").tolist()
    ran = [i for i in range(6) if i != 1]  # eval is no part of a training step
    assert [ours[i] for i in ran] == list(machine.trace) and ours[1] == 0


def test_a_commit_ends_a_micro_batch(session: Session) -> None:
    """Until then the outputs stay, and the sums are in STATE: half a batch can be saved and taken up again."""
    plan, data = tiny_plan(40, af=5), samples(8, 40)
    session.load_plan(plan)

    def outputs() -> bytes:
        session.sample(data[0][0])
        return session.predict().output.tobytes()

    start, before = session.read_state(), outputs()
    list(session.train_stream(data[:5], SKIP))
    half = session.read_state()
    assert outputs() == before and half == reference_state(plan, data[:5]) != start
    session.reset()
    session.write_state(half)
    list(session.train_stream(data[5:], SKIP))
    assert session.commit() >= 0
    assert outputs() != before
    assert session.read_state() == reference_state(plan, data, {7})


def test_a_commit_of_a_plan_that_updates_at_once_does_nothing(session: Session) -> None:
    session.load_plan(tiny_plan())
    list(session.train_stream(samples(3), SKIP))
    state = session.read_state()
    session.commit()
    assert session.read_state() == state == reference_state(tiny_plan(), samples(3))


def test_the_trace_of_a_commit(session: Session) -> None:
    plan, data = tiny_plan(af=5), samples(1)
    session.load_plan(plan)
    session.trace_on()
    machine = Machine(plan)
    session.sample(data[0][0])
    session.train(data[0][1], 0.02, 0.0)
    machine.train(np.frombuffer(data[0][0], np.int8), data[0][1], 0.02, 0.0)
    session.commit()
    machine.tracing = True
    machine.commit()
    assert np.frombuffer(session.read(Region.TRACE, 0, 32), "<u4").tolist() == [0] * 6 + machine.trace
    assert all(machine.trace)


def test_a_second_hello_keeps_plan_and_state(session: Session, line: Transport) -> None:
    plan = tiny_plan()
    loaded = session.load_plan(plan)
    list(session.train_stream(samples(9), SKIP))
    state = session.read_state()
    again = Session(line, deadline_s=5.0)
    assert again.hello().plan_crc == loaded.plan_crc
    assert again.read(Region.STATE, 0, len(state)) == state


def test_a_banner_before_hello_is_skipped(line: Transport) -> None:
    class Booting:
        name = "booting board"
        banner = b"\r\nrom 1.02: waiting\r\n\xff\x00\xfe"
        read_once = False

        def read(self, timeout_s: float) -> bytes:
            data, self.banner = self.banner, b""
            return data or line.read(timeout_s)

        def write(self, data: bytes) -> None:
            line.write(data)

        def close(self) -> None:
            line.close()

    session = Session(Booting(), deadline_s=5.0)
    assert session.hello().board == "host"


@pytest.fixture(scope="module")
def clean_state() -> bytes:
    return reference_state(tiny_plan(40), samples(150, 40))


@pytest.mark.parametrize("seed", range(6))
def test_damage_on_the_line_does_not_change_the_weights(line: Transport, clean_state: bytes, seed: int) -> None:
    faulty = FaultyTransport(line, seed, 0.0008)
    session = Session(faulty, deadline_s=10.0, retry_s=0.03)
    session.hello()
    session.load_plan(tiny_plan(40))
    assert len(list(session.train_stream(samples(150, 40), SKIP))) == 150
    state = session.read_state()
    assert faulty.faults > 3
    assert state == clean_state


@pytest.mark.parametrize("seed", range(3))
def test_damage_on_the_line_commits_nothing_twice(line: Transport, seed: int) -> None:
    plan, data, commits = tiny_plan(40, af=5), samples(120, 40), range(3, 120, 4)
    faulty = FaultyTransport(line, seed, 0.0008)
    session = Session(faulty, deadline_s=10.0, retry_s=0.03)
    session.hello()
    session.load_plan(plan)
    assert len(list(session.train_stream(data, SKIP, commits))) == 120
    state = session.read_state()
    assert faulty.faults > 3
    assert state == reference_state(plan, data, commits)


@pytest.mark.parametrize("where", ["command", "reply"])
def test_every_single_lost_byte_is_repaired(line: Transport, where: str) -> None:
    plan, data = tiny_plan(), samples(1)
    expected = reference_state(plan, data)

    class OneLost:
        name = "line that loses one byte"
        at = -1

        def read(self, timeout_s: float) -> bytes:
            data = line.read(timeout_s)
            return self._lose(data) if where == "reply" else data

        def write(self, data: bytes) -> None:
            line.write(self._lose(data) if where == "command" else data)

        def close(self) -> None:
            line.close()

        def _lose(self, data: bytes) -> bytes:
            at, self.at = self.at, self.at - len(data) if self.at >= 0 else -1
            return data[:at] + data[at + 1 :] if 0 <= at < len(data) else data

    lossy = OneLost()
    session = Session(lossy, deadline_s=5.0, retry_s=0.01)
    session.hello()
    session.load_plan(plan)
    for position in range(32):
        session.reset()
        lossy.at = position
        list(session.train_stream(data, SKIP))
        lossy.at = -1
        assert session.read_state() == expected, position


def test_a_peer_that_stops_is_reported_in_time(line: Transport) -> None:
    mute = DeadTransport(line, Way.REPLY, 10**9)
    session = Session(mute, deadline_s=0.5, retry_s=0.05)
    session.hello()
    session.load_plan(tiny_plan())
    for allowed in (0, 1, 17, 40):
        mute.allowed = allowed
        start = time.monotonic()
        with pytest.raises(LinkError, match=r"did not (answer|take)") as e:
            list(session.train_stream(samples(50), SKIP))
        assert e.value.exit_code == 75
        assert time.monotonic() - start < 5
        mute.allowed = 10**9
        session.hello()


def test_nothing_on_the_line_is_reported_in_time() -> None:
    class Silent:
        name = "/dev/ttySILENT"

        def read(self, timeout_s: float) -> bytes:
            time.sleep(timeout_s)
            return b""

        def write(self, data: bytes) -> None: ...

        def close(self) -> None: ...

    start = time.monotonic()
    with pytest.raises(LinkError, match=r"/dev/ttySILENT did not answer HELLO within 0\.3 s"):
        Session(Silent(), deadline_s=0.3, retry_s=0.05).hello()
    assert time.monotonic() - start < 3


def test_an_echoing_line_is_no_device() -> None:
    class Echo:
        name = "modem"
        data = b""

        def read(self, timeout_s: float) -> bytes:
            data, self.data = self.data, b""
            time.sleep(0.01)
            return data

        def write(self, data: bytes) -> None:
            self.data += data

        def close(self) -> None: ...

    with pytest.raises(LinkError, match="did not answer HELLO"):
        Session(Echo(), deadline_s=0.3, retry_s=0.05).hello()


def test_a_stolen_session_is_noticed(session: Session, line: Transport) -> None:
    session.load_plan(tiny_plan())
    Session(line, deadline_s=5.0).hello()
    with pytest.raises(LinkError, match="lost the session: another program"):
        for _ in range(3):
            session.stats()


def test_a_late_hello_does_not_reset_the_sequence(session: Session, line: Transport) -> None:
    session.load_plan(tiny_plan())
    line.write(encode(Frame(0x01, 0, session._nonce.to_bytes(4, "little") + b"\1\0")))
    assert session.stats().damaged_frames == 0


def test_the_stream_asks_for_samples_as_it_goes(session: Session) -> None:
    session.load_plan(tiny_plan())
    asked = 0

    def endless() -> Iterator[tuple[bytes, int, float]]:
        nonlocal asked
        for sample in itertools.cycle(samples(8)):
            asked += 1
            yield sample

    stream = session.train_stream(endless(), SKIP)
    list(itertools.islice(stream, 100))
    stream.close()
    assert asked <= 100 + session.caps.window_frames


@pytest.mark.parametrize("cut", [0, 1, 20, 55])
def test_ctrl_c_in_the_middle_of_a_frame_keeps_the_weights_readable(line: Transport, cut: int) -> None:
    class Interrupted:
        name = "line"
        after = 10**9

        def read(self, timeout_s: float) -> bytes:
            return line.read(timeout_s)

        def write(self, data: bytes) -> None:
            self.after -= 1
            line.write(data if self.after else data[:cut])
            if not self.after:
                raise KeyboardInterrupt

        def close(self) -> None:
            line.close()

    plan, data = tiny_plan(40), samples(50, 40)
    interrupted = Interrupted()
    session = Session(interrupted, deadline_s=5.0, retry_s=0.05)
    session.hello()
    session.load_plan(plan)
    interrupted.after = 62
    with pytest.raises(KeyboardInterrupt):
        list(session.train_stream(data, SKIP))
    state = session.read_state()
    assert state in (reference_state(plan, data[:20]), reference_state(plan, data[:21]))
