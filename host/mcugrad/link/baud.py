"""The fastest rate that a line carries."""

from __future__ import annotations

from collections.abc import Iterable

from mcugrad.link.session import Session
from mcugrad.link.transport import SerialTransport, Transport

RATES = (1_000_000, 921_600, 460_800, 230_400)
"""Tried in this order. Bridges differ in what they can: many have 1,000,000 exactly and 921,600 by 2 % wrong."""


def negotiate(session: Session, rates: Iterable[int] = RATES) -> int:
    """Take the line to the first of ``rates`` that both ends can have and that carries frames unharmed. Returns the rate it then has."""
    next((rate for rate in rates if session.change_rate(rate)), None)
    return session.rate


def speed_up(session: Session, transport: Transport) -> int | None:
    """Negotiate where ``transport`` is a serial port whose rate the user left open; None elsewhere."""
    return negotiate(session) if isinstance(transport, SerialTransport) and transport.negotiable else None
