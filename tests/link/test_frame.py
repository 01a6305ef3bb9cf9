"""Frames: round trips, damage, and C against Python."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.c_frames import CFrames
from mcugrad.link.frame import Decoder, Frame, cobs_decode, cobs_encode, decode, encode

# Zeros and runs of exactly 253, 254, 255 bytes are where COBS changes its shape.
BODIES = st.one_of(
    st.binary(max_size=600),
    st.lists(st.sampled_from([b"\0", b"\xff", b"\1" * 253, b"\2" * 254, b"\3" * 255, b"\0" * 300]), max_size=4).map(b"".join),
)
FRAMES = st.builds(Frame, st.integers(0, 255), st.integers(0, 255), BODIES)


@given(FRAMES)
def test_a_frame_survives_the_wire(frame: Frame) -> None:
    wire = encode(frame)
    assert wire.count(0) == 1 and wire[-1] == 0
    assert decode(wire[:-1]) == frame


@pytest.mark.parametrize("n", [0, 1, 63, 64, 65, 127, 128, 253, 254, 255, 507, 508, 509, 1032])
@pytest.mark.parametrize("byte", [0, 7])
def test_cobs_at_block_boundaries(n: int, byte: int) -> None:
    data = bytes([byte]) * n
    assert cobs_decode(cobs_encode(data)) == data
    assert cobs_decode(cobs_encode(data + b"\0")) == data + b"\0"


@given(st.lists(FRAMES, max_size=4), st.integers(1, 70))
def test_any_cut_of_the_stream_gives_the_same_frames(frames: list[Frame], cut: int) -> None:
    wire = b"banner of a boot loader\r\n\0" + b"\0".join(encode(f) for f in frames)
    decoder = Decoder()
    got = [f for i in range(0, len(wire), cut) for f in decoder.push(wire[i : i + cut])]
    assert got == frames and decoder.damaged == 1


def damages(wire: bytes, rng: random.Random) -> list[bytes]:
    """Every drop, duplicate, one flip and one insertion at every position."""
    out: list[bytes] = []
    for i in range(len(wire)):
        out.append(wire[:i] + wire[i + 1 :])
        out.append(wire[:i] + wire[i : i + 1] + wire[i:])
        out.append(wire[:i] + bytes([wire[i] ^ 1 << rng.randrange(8)]) + wire[i + 1 :])
        out.append(wire[:i] + bytes([rng.randrange(256)]) + wire[i:])
    return out


@settings(max_examples=15, deadline=None)
@given(st.builds(Frame, st.integers(0, 255), st.integers(0, 255), st.binary(max_size=40)), st.integers(0, 999))
def test_one_damaged_byte_never_makes_another_frame(frame: Frame, seed: int) -> None:
    after = Frame(1, 2, b"next")
    for wire in damages(encode(frame), random.Random(seed)):
        got = Decoder().push(wire + b"\0" + encode(after))
        assert got in ([after], [frame, after])


def test_oversize_is_dropped_up_to_its_delimiter() -> None:
    decoder = Decoder(capacity_bytes=64)
    assert decoder.push(b"\1" * 1000) == []
    assert decoder.push(b"\1" * 1000 + b"\0" + encode(Frame(1, 2, b"x"))) == [Frame(1, 2, b"x")]
    assert decoder.damaged == 1


@settings(max_examples=60, deadline=None)
@given(FRAMES)
def test_c_encodes_the_same_bytes(c_frames: CFrames, frame: Frame) -> None:
    assert c_frames.encode(bytes((frame.type, frame.seq)) + frame.body) == encode(frame)


@settings(max_examples=60, deadline=None)
@given(st.lists(FRAMES, max_size=3), st.data())
def test_c_decodes_damaged_streams_like_python(c_frames: CFrames, frames: list[Frame], data: st.DataObject) -> None:
    wire = bytearray(b"".join(encode(f) for f in frames))
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(wire)))
        wire[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))
    python = Decoder()
    expected = [bytes((f.type, f.seq)) + f.body for f in python.push(bytes(wire) + b"\0")]
    got, errors = c_frames.decode(bytes(wire) + b"\0", 2000)
    assert got == expected and len(errors) == python.damaged


@settings(max_examples=40, deadline=None)
@given(st.binary(max_size=400), st.integers(6, 64))
def test_c_decoder_stays_in_its_buffer(c_frames: CFrames, noise: bytes, capacity: int) -> None:
    frames, _ = c_frames.decode(noise + b"\0" + encode(Frame(9, 9, b"")), capacity)
    assert frames[-1] == b"\x09\x09"


def test_c_drops_what_is_one_byte_too_long(c_frames: CFrames) -> None:
    wire = encode(Frame(1, 2, bytes(10)))
    assert c_frames.decode(wire, 16) == ([b"\1\2" + bytes(10)], [])
    assert c_frames.decode(wire, 15) == ([], [-2])


@pytest.mark.parametrize("line", range(8))
def test_the_crc_is_that_of_the_memory(c_frames: CFrames, line: int) -> None:
    """A cache line of 32 bytes that still holds what was there before: the bytes that came were right, the frame is damaged."""
    wire = encode(Frame(0x20, 1, bytes(range(256))))
    assert c_frames.decode_over(wire, 0, b"") == 2 + 256
    assert c_frames.decode_over(wire, 32 * line, bytes(32)) < 0
