"""The C library on this machine: built with CMake, called through ctypes. NativeMachine can stand wherever ref.Machine does."""

from __future__ import annotations

import ctypes as c
import fcntl
import functools
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mcugrad.errors import McugradError, PlanError, UnavailableError
from mcugrad.paths import root
from mcugrad.plan.codec import decode
from mcugrad.ref.memory import Memory
from mcugrad.ref.run import Result, Sample, checked_label, checked_sample, checked_target

_TARGET = "mcugrad_host"
_ALIGN = 16
_REGIONS = 4
_SEGMENTS = 5


class _Fault(c.Structure):
    _fields_ = (("code", c.c_int), ("step", c.c_uint32), ("value", c.c_uint32), ("limit", c.c_uint32))


_After = c.CFUNCTYPE(None, c.c_void_p, c.c_uint32, c.c_void_p)


class _Context(c.Structure):
    """struct mg_ctx of mcugrad.h."""

    _fields_ = (
        ("plan", c.c_void_p),
        ("base", c.c_void_p * _REGIONS),
        ("bytes", c.c_uint32 * _REGIONS),
        ("segment", c.c_void_p * _SEGMENTS),
        ("after", _After),
        ("user", c.c_void_p),
        ("fault", _Fault),
    )


class _MgResult(c.Structure):
    _fields_ = (("loss", c.c_float), ("peak", c.c_float), ("argmax", c.c_int32), ("skipped", c.c_uint32))


def _run(command: Sequence[str | Path]) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        tail = "\n".join(done.stdout.splitlines()[-20:])
        raise McugradError(f"building {_TARGET} failed\n{tail}", "run cmake -S . -B build/host && cmake --build build/host to see all")


def build() -> Path:
    """Configure and build the host library where its sources changed; the path of the shared library.

    Raises UnavailableError where CMake, Ninja or a C compiler is missing.
    """
    for tools, package in ((("cmake",), "cmake"), (("ninja",), "ninja-build"), (("cc", "gcc", "clang"), "gcc")):
        if not any(shutil.which(t) for t in tools):
            raise UnavailableError(f"{tools[0]} is not on PATH", f"apt install {package}")
    folder = root() / "build" / "host"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "build.ninja").exists():
            _run(["cmake", "-S", root(), "-B", folder, "-G", "Ninja"])
        _run(["cmake", "--build", folder, "--target", _TARGET])
    return folder / f"lib{_TARGET}.so"


@functools.cache
def library() -> c.CDLL:
    """The loaded library, built first where needed."""
    lib = c.CDLL(str(build()))
    context, result = c.POINTER(_Context), c.POINTER(c.POINTER(_MgResult))
    lib.mg_memory_bytes.argtypes, lib.mg_memory_bytes.restype = (c.c_void_p, c.c_size_t), c.c_size_t
    lib.mg_init.argtypes = (context, c.c_void_p, c.c_size_t, c.c_void_p, c.c_size_t)
    lib.mg_reset.argtypes, lib.mg_reset.restype = (context,), None
    lib.mg_sample.argtypes, lib.mg_sample.restype = (context,), c.c_void_p
    lib.mg_output.argtypes, lib.mg_output.restype = (context,), c.c_void_p
    lib.mg_target.argtypes, lib.mg_target.restype = (context,), c.c_void_p
    lib.mg_predict.argtypes, lib.mg_predict.restype = (context,), None
    lib.mg_commit.argtypes, lib.mg_commit.restype = (context,), None
    lib.mg_train.argtypes = (context, c.c_uint16, c.c_float, c.c_float, result)
    lib.mg_state.argtypes, lib.mg_state.restype = (context, c.POINTER(c.c_size_t)), c.c_void_p
    lib.mg_outputs_crc.argtypes, lib.mg_outputs_crc.restype = (context, c.c_void_p), c.c_uint32
    lib.mg_host_run_step.argtypes = (c.c_char_p, c.c_size_t, c.c_void_p * _REGIONS, c.c_size_t * _REGIONS)
    return lib


def aligned(size: int) -> Memory:
    """``size`` zero bytes at an address that is a multiple of 16."""
    raw = np.zeros(size + _ALIGN, np.uint8)
    start = -raw.ctypes.data % _ALIGN
    return raw[start : start + size]


def run_step(record: bytes, regions: Sequence[Memory]) -> int:
    """Verify one record and run its kernel on the four regions, in place. Returns 0 or MG_ERR_…."""
    pointers = (c.c_void_p * _REGIONS)(*(r.ctypes.data for r in regions))
    sizes = (c.c_size_t * _REGIONS)(*(len(r) for r in regions))
    return int(library().mg_host_run_step(record, len(record), pointers, sizes))


def _bytes_at(address: int, size: int) -> Memory:
    return np.ctypeslib.as_array((c.c_uint8 * size).from_address(address)) if size else np.zeros(0, np.uint8)


class NativeMachine:
    """The C library as executor of one plan: the interface of ref.Machine, without ``observe``.

    Raises PlanError where the library refuses the plan.
    """

    def __init__(self, plan: bytes) -> None:
        self.plan = decode(plan)
        self.tracing = False
        self.trace: list[int] = []
        self._lib = library()
        self._plan_bytes = aligned(len(plan))
        self._plan_bytes[:] = np.frombuffer(plan, dtype=np.uint8)
        self._memory = aligned(self._lib.mg_memory_bytes(self._plan_bytes.ctypes.data, len(plan)))
        self._context = _Context()
        self._net = c.byref(self._context)
        where = (self._plan_bytes.ctypes.data, len(plan), self._memory.ctypes.data, len(self._memory))
        if self._lib.mg_init(self._net, *where):
            f = self._context.fault
            raise PlanError(f"the library refuses the plan: error {f.code}, step {f.step}, value {f.value}, limit {f.limit}")
        self._result = c.POINTER(_MgResult)()
        self._after = _After(self._record)
        size = c.c_size_t()
        address = self._lib.mg_state(self._net, c.byref(size))
        self._state = _bytes_at(address, size.value)
        self._sample = _bytes_at(self._lib.mg_sample(self._net), self.plan.header.sample_bytes).view(np.int8)
        self._target = _bytes_at(self._lib.mg_target(self._net), self.plan.header.target_bytes).view(np.int8)
        self._output = _bytes_at(self._lib.mg_output(self._net), self.plan.header.output_bytes).view(np.int8)

    @property
    def regions(self) -> tuple[Memory, ...]:
        """ARENA, CONST, STATE, IO: the library's own memory."""
        return tuple(_bytes_at(self._context.base[i] or 0, self._context.bytes[i]) for i in range(_REGIONS))

    @property
    def state(self) -> bytes:
        """The bytes of STATE: trained weights, residuals, exponents, random state."""
        return self._state.tobytes()

    @state.setter
    def state(self, value: bytes) -> None:
        if len(value) != len(self._state):
            raise PlanError(f"STATE has {len(self._state)} bytes, not {len(value)}", "use a checkpoint of the same plan")
        self._state[:] = np.frombuffer(value, dtype=np.uint8)

    def reset(self) -> None:
        """Back to the plan's initial STATE; ARENA and IO zero."""
        self._lib.mg_reset(self._net)

    def predict(self, sample: Sample) -> Sample:
        """int8 input of the model, any shape -> its int8 output, flat."""
        self._prepare(sample)
        self._lib.mg_predict(self._net)
        out: npt.NDArray[np.int8] = self._output.copy()
        return out

    def train(self, sample: Sample, label: int, lr: float, skip: float = 0.1, target: Sample | None = None) -> Result:
        """One training step, as ref.Machine.train."""
        checked_label(self.plan, label, lr, skip)
        wanted = checked_target(self.plan, target)
        self._prepare(sample)
        self._target[:] = wanted
        code = self._lib.mg_train(self._net, label, lr, skip, c.byref(self._result))
        if code:
            raise PlanError(f"mg_train refuses label {label}, lr {lr}, skip {skip}: error {code}")
        r = self._result.contents
        return Result(r.loss, r.peak, r.argmax, bool(r.skipped))

    def commit(self) -> None:
        """The end of a micro-batch, as ref.Machine.commit."""
        self._begin_trace()
        self._lib.mg_commit(self._net)

    def _prepare(self, sample: Sample) -> None:
        self._sample[:] = checked_sample(self.plan, sample)
        self._begin_trace()

    def _begin_trace(self) -> None:
        self.trace = []
        self._context.after = self._after if self.tracing else _After()

    def _record(self, _user: int | None, _index: int, step: int) -> None:
        self.trace.append(self._lib.mg_outputs_crc(self._net, step))
