"""What a device's error code means: a text, a cause, a next step for each.

The codes are ``enum mg_err`` of firmware/include/mcugrad.h and ``enum mg_link_err`` of firmware/link/session.h. A test reads
both and requires that every code stands here.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from mcugrad.errors import DeviceError, FitError, McugradError


@dataclass(frozen=True, slots=True)
class ErrorText:
    """``text`` is formatted with value and limit (u32) and real (value as float32)."""

    name: str
    text: str
    cause: str
    hint: str


_REBUILD = "build and flash the firmware again, then make the plan again"
_REPLAN = "make the plan again from the model"
_REPORT = "host and firmware disagree: build both from the same version; if they are, report this"
_RETRY = "try again; if it comes back, lower the baud rate or change the cable"

TEXTS: Mapping[int, ErrorText] = {
    -1: ErrorText(
        "MG_ERR_ARG", "learning rate or skip threshold {real:g} is not a finite number >= 0", "an argument of a step", "use --lr >= 0"
    ),
    -2: ErrorText("MG_ERR_ALIGN", "address 0x{value:08x} is not a multiple of {limit}", "the plan is damaged", _REPLAN),
    -3: ErrorText(
        "MG_ERR_SIZE", "a part of the plan needs {value:,} bytes where {limit:,} are there", "the plan is cut or damaged", _REPLAN
    ),
    -4: ErrorText("MG_ERR_MAGIC", "0x{value:08x} is not the start of a plan (0x{limit:08x} is)", "the file is not a plan", _REPLAN),
    -5: ErrorText(
        "MG_ERR_VERSION", "plan format {value}, the firmware knows {limit}", "firmware and host are of different versions", _REBUILD
    ),
    -6: ErrorText(
        "MG_ERR_OPS",
        "the plan was made for step table 0x{value:08x}, the firmware has 0x{limit:08x}",
        "ops.def has changed since one of the two was built",
        _REBUILD,
    ),
    -7: ErrorText("MG_ERR_CRC", "the plan's CRC is 0x{value:08x}, its header says 0x{limit:08x}", "the plan is damaged", _REPLAN),
    -8: ErrorText("MG_ERR_HEADER", "a field of the plan's header is {value}, not {limit}", "the plan is damaged", _REPLAN),
    -9: ErrorText(
        "MG_ERR_NOMEM",
        "the plan needs {value:,} bytes of RAM, the board has {limit:,} to give",
        "the scheme is too large for the board",
        "pick a smaller scheme (--train) or another board",
    ),
    -10: ErrorText("MG_ERR_CODE", "there is no step kind 0x{value:02x}", "the plan is damaged or newer than the firmware", _REBUILD),
    -11: ErrorText(
        "MG_ERR_KERNEL",
        "the kernel of step kind 0x{value:02x} is not in this firmware",
        "the firmware was built with a selection of kernels",
        "build the firmware with all kernels, or with this plan's",
    ),
    -12: ErrorText("MG_ERR_RECORD", "a step record is malformed ({value}, expected {limit})", "the plan is damaged", _REPLAN),
    -13: ErrorText("MG_ERR_FIELD", "condition {value} of the step kind does not hold", "the plan is damaged", _REPLAN),
    -14: ErrorText("MG_ERR_REF", "a step reaches to {value:,} in a region of {limit:,} bytes", "the plan is damaged", _REPLAN),
    -15: ErrorText("MG_ERR_READONLY", "a step writes to 0x{value:08x}, which is constant", "the plan is damaged", _REPLAN),
    -16: ErrorText("MG_ERR_VALUE", "constant {value} of {limit} is out of range", "the plan is damaged", _REPLAN),
    -17: ErrorText(
        "MG_ERR_LABEL",
        "label {value}, the model has {limit} classes (0: the plan cannot train)",
        "the data belong to another model",
        "labels are 0 … classes - 1: check y, or give --classes",
    ),
    -18: ErrorText(
        "MG_ERR_STORE",
        "a checkpoint of this plan needs {value:,} bytes of flash, a slot of the board has {limit:,}",
        "the board keeps no checkpoints (0), or too small ones",
        "set checkpoint_bytes in its board.toml, or train without checkpoints on the device",
    ),
    -19: ErrorText(
        "MG_ERR_FLASH",
        "checkpoint slot {limit} did not keep what was written at {value:,}",
        "the flash is worn out or write-protected",
        "the checkpoint before is still there; see the board's notes",
    ),
    -20: ErrorText(
        "MG_ERR_EMPTY", "the board holds no whole checkpoint", "none was saved, or the flash was erased", "train with --save-every first"
    ),
    -21: ErrorText(
        "MG_ERR_OTHER",
        "the checkpoint on the board is of plan 0x{value:08x}, the loaded plan is 0x{limit:08x}",
        "another model, scheme or option of the plan since it was saved",
        "use the model and the options that it was saved with, or train without --restore",
    ),
    -64: ErrorText("MG_LINK_ERR_PROTOCOL", "the host speaks link protocol {value}, the firmware {limit}", "different versions", _REBUILD),
    -65: ErrorText("MG_LINK_ERR_SESSION", "command 0x{value:02x} without a session", "the board was reset in between", "try again"),
    -66: ErrorText("MG_LINK_ERR_TYPE", "the firmware has no command 0x{value:02x}", "different versions", _REBUILD),
    -67: ErrorText("MG_LINK_ERR_LENGTH", "{value} bytes where {limit} are expected", "a command of the wrong length", _REPORT),
    -68: ErrorText(
        "MG_LINK_ERR_NO_PLAN", "command 0x{value:02x} needs a plan and none is loaded", "no plan, or the last was refused", "load a plan"
    ),
    -69: ErrorText(
        "MG_LINK_ERR_SLOT",
        "the plan has {value:,} bytes, the board's plan slot {limit:,}",
        "the model is too large for the board's flash",
        "pick a smaller model or another board",
    ),
    -70: ErrorText("MG_LINK_ERR_ORDER", "data at offset {value:,}, expected {limit:,}", "a transfer out of order", _REPORT),
    -71: ErrorText(
        "MG_LINK_ERR_FLASH",
        "the plan slot did not take the bytes at {value:,}",
        "the flash is worn out or write-protected",
        "see the board's notes",
    ),
    -72: ErrorText(
        "MG_LINK_ERR_TRANSFER", "the slot's CRC is 0x{value:08x}, sent was 0x{limit:08x}", "the flash did not keep the plan", _RETRY
    ),
    -73: ErrorText("MG_LINK_ERR_REGION", "region {value}, there are {limit}", "a command names no region", _REPORT),
    -74: ErrorText(
        "MG_LINK_ERR_RANGE", "bytes up to {value:,} of a region of {limit:,}", "a transfer is too long for the loaded plan", _REPORT
    ),
    -75: ErrorText(
        "MG_LINK_ERR_SAMPLE",
        "{value:,} bytes of the sample have come, {limit:,} are needed",
        "the sample has another shape than the model's input, its target is missing, or a step has used it up",
        "check the shape of x, and of y where the loss is a regression",
    ),
    -76: ErrorText("MG_LINK_ERR_NO_TRACE", "the trace is off", "READ of a trace that was not switched on", "switch it on first"),
    -77: ErrorText("MG_LINK_ERR_REPLAY", "the reply to frame {value} is no longer kept (next is {limit})", "lost replies", _RETRY),
    -78: ErrorText(
        "MG_LINK_ERR_BAUD",
        "the board's line cannot run at {value:,} baud, it stays at {limit:,}",
        "its clock has no divider for that rate",
        "use another rate, or none: the fastest that works is then looked for",
    ),
    -79: ErrorText("MG_LINK_ERR_RESULT", "no training step was started whose result could be asked for", "commands out of order", _REPORT),
    -80: ErrorText(
        "MG_LINK_ERR_KEY",
        "the plan has no signature by the key of this firmware",
        "the firmware takes signed plans only",
        "set MCUGRAD_PLAN_KEY to the key file that it was built with",
    ),
}

_FIT = (-9, -18, -69)


def device_error(code: int, step: int, value: int, limit: int) -> McugradError:
    """The exception for an ERR reply: FitError where something is too large, else DeviceError."""
    known = TEXTS.get(code)
    if known is None:
        return DeviceError(f"the device reports error {code} ({value}, {limit})", _REBUILD, code, step)
    real = struct.unpack("<f", struct.pack("<I", value))[0]
    where = f" (step {step})" if step >= 0 else ""
    text = f"{known.name}{where}: {known.text.format(value=value, limit=limit, real=real)}; cause: {known.cause}"
    return FitError(text, known.hint) if code in _FIT else DeviceError(text, known.hint, code, step)
