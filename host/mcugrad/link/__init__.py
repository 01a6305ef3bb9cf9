"""The serial link: frames, transports, sessions (SPEC.md section 4)."""

from __future__ import annotations

from mcugrad.link.protocol import (
    Caps,
    Checkpoints,
    Command,
    DeviceCheckpoint,
    Loaded,
    PredictReply,
    Region,
    Sample,
    Stats,
    TickUnit,
    TrainReply,
)
from mcugrad.link.session import Session
from mcugrad.link.transport import SerialTransport, SocketTransport, Transport

__all__ = [
    "Caps",
    "Checkpoints",
    "Command",
    "DeviceCheckpoint",
    "Loaded",
    "PredictReply",
    "Region",
    "Sample",
    "SerialTransport",
    "Session",
    "SocketTransport",
    "Stats",
    "TickUnit",
    "TrainReply",
    "Transport",
]
