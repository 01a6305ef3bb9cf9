"""Damaged files: one ModelError, soon, and never anything else."""

from __future__ import annotations

import functools
import struct
import time
import tracemalloc

import flatbuffers
import numpy as np
import pytest
import tflite
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.shared import shared
from helpers.tiny_graphs import every_op, small_net
from mcugrad.errors import ModelError
from mcugrad.exporter import write_tflite
from mcugrad.importer import import_tflite

STUB = struct.pack("<I4s", 24, b"TFL3")

STUBS = {
    "empty": b"",
    "8 bytes": STUB,
    "32 bytes": STUB + bytes(24),
    "64 zero bytes": bytes(64),
    "64 zero bytes with the identifier": bytes(4) + b"TFL3" + bytes(56),
    "root beyond the end": struct.pack("<I4s", 0x7FFFFFFF, b"TFL3") + bytes(56),
    "root at the end": struct.pack("<I4s", 64, b"TFL3") + bytes(56),
    "root in the middle of nothing": struct.pack("<I4s", 0xFFFFFFFF, b"TFL3") + bytes(56),
}


@functools.cache
def small_file() -> bytes:
    return write_tflite(small_net())


@functools.cache
def large_file() -> bytes:
    return write_tflite(every_op())


def refuses(data: bytes) -> bool:
    """True for ModelError, False for a graph; everything else is the test's failure. Also bounds the time."""
    start = time.process_time()
    try:
        import_tflite(data, "m")
        return False
    except ModelError as error:
        assert error.text and error.hint
        return True
    finally:
        assert time.process_time() - start < 1


@pytest.mark.parametrize("name", STUBS)
def test_a_stub(name: str) -> None:
    assert refuses(STUBS[name])


def test_a_file_cut_anywhere() -> None:
    data = small_file()
    assert not refuses(data)
    assert [n for n in range(len(data)) if not refuses(data[:n])] == []


@pytest.mark.parametrize("name", ["mlperf_tiny/kws_ref_model_int8", "emlearn/mnist_cnn_int8", "tflm/person_detect"])
def test_a_real_file_cut_at_every_100th_byte(name: str) -> None:
    data = shared(f"models/{name}.tflite").read_bytes()
    step = 100 if len(data) < 100_000 else 1000
    assert [n for n in range(0, len(data), step) if not refuses(data[:n])] == []


@pytest.mark.parametrize("word", [0, 9999, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF])
def test_every_word_of_a_file_overwritten(word: int) -> None:
    """Every offset, length, index, size, scale and option of the file, one at a time."""
    data = small_file()
    refused = sum(refuses(data[:at] + struct.pack("<I", word) + data[at + 4 :]) for at in range(0, len(data) - 3, 4))
    assert refused > len(data) // 16


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=8))
def test_random_bytes_overwritten(edits: list[tuple[float, int]]) -> None:
    data = bytearray(large_file())
    for where, value in edits:
        data[int(where * len(data))] = value
    refuses(bytes(data))


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=400))
def test_random_bytes_behind_the_head(tail: bytes) -> None:
    assert refuses(STUB + tail)


def _sharing_file(count: int) -> bytes:
    """``count`` tensors that all point at one shape of ``count`` sizes: small on disk, quadratic to a reader that believes it."""
    b = flatbuffers.Builder(1024)
    shape = b.CreateNumpyVector(np.ones(count, np.int32))
    tflite.TensorStart(b)
    tflite.TensorAddShape(b, shape)
    tensor = tflite.TensorEnd(b)
    tflite.SubGraphStartTensorsVector(b, count)
    for _ in range(count):
        b.PrependUOffsetTRelative(tensor)
    tensors = b.EndVector()
    tflite.SubGraphStart(b)
    tflite.SubGraphAddTensors(b, tensors)
    graph = tflite.SubGraphEnd(b)
    tflite.BufferStart(b)
    buffer = tflite.BufferEnd(b)
    tflite.ModelStartSubgraphsVector(b, 1)
    b.PrependUOffsetTRelative(graph)
    graphs = b.EndVector()
    tflite.ModelStartBuffersVector(b, 1)
    b.PrependUOffsetTRelative(buffer)
    buffers = b.EndVector()
    tflite.ModelStart(b)
    tflite.ModelAddVersion(b, 3)
    tflite.ModelAddSubgraphs(b, graphs)
    tflite.ModelAddBuffers(b, buffers)
    b.Finish(tflite.ModelEnd(b), b"TFL3")
    return bytes(b.Output())


def _file_that_ends_in_text() -> bytes:
    b = flatbuffers.Builder(256)
    description = b.CreateString("a description of thirty letters")
    tflite.ModelStart(b)
    tflite.ModelAddVersion(b, 3)
    tflite.ModelAddDescription(b, description)
    b.Finish(tflite.ModelEnd(b), b"TFL3")
    return bytes(b.Output())


def test_a_file_cut_in_a_text() -> None:
    data = _file_that_ends_in_text()
    with pytest.raises(ModelError, match="0 subgraphs"):
        import_tflite(data, "m")
    for n in range(len(data) - 30, len(data) - 1):
        with pytest.raises(ModelError, match="damaged"):
            import_tflite(data[:n], "m")


def test_a_vector_that_many_tables_share_is_not_read_many_times() -> None:
    data = _sharing_file(20_000)
    tracemalloc.start()
    assert refuses(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50_000_000
