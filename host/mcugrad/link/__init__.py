"""The serial link: frames, transports, sessions (SPEC.md section 4)."""

from __future__ import annotations

from mcugrad.link.protocol import Caps, Command, Loaded, PredictReply, Region, Sample, Stats, TickUnit, TrainReply
from mcugrad.link.session import Session
from mcugrad.link.transport import SerialTransport, SocketTransport, Transport

__all__ = [
    "Caps",
    "Command",
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
