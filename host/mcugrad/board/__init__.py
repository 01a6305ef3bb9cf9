"""Boards: what they are (boards/<name>/board.toml), how to build for them, how to open them."""

from __future__ import annotations

from mcugrad.board.build import Firmware
from mcugrad.board.open import open_board
from mcugrad.board.ports import Port, list_ports
from mcugrad.board.table import Board, Kind, find_board, load_boards

__all__ = ["Board", "Firmware", "Kind", "Port", "find_board", "list_ports", "load_boards", "open_board"]
