"""The sparse-update schemes published for MIT's three nets (../shared/data/models/tiny_training), as --train words."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass

from helpers.shared import shared
from mcugrad.board import find_board
from mcugrad.lower import Options
from mcugrad.pipeline import Compiled, compile_model
from mcugrad.report import PlanReport, report

FOLDER = "models/tiny_training"
NETS = {"mbv2-w0.35": 141, "proxyless-w0.3": 135, "mcunet-5fps": 173}
"""Net -> kilobytes of SRAM that the paper needs for its best scheme (arXiv 2206.15472)."""

SCHEMES = {
    "mbv2-w0.35": ("49kb", "73kb", "99kb", "123kb", "138kb"),
    "proxyless-w0.3": ("49kb", "74kb", "98kb", "120kb", "148kb"),
    "mcunet-5fps": ("49kb", "74kb", "99kb", "124kb", "148kb"),
}
ALL = [(net, name) for net, names in SCHEMES.items() for name in names]
BOARD = "qemu-mps2-an500"
CLASSES = 10


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table, in bytes. ``ws``: bytes of a trained weight."""

    net: str
    scheme: str
    ws: int
    report: PlanReport

    @property
    def limit(self) -> int:
        return NETS[self.net] * 1024

    @property
    def fits(self) -> bool:
        return self.report.ram.total <= self.limit

    def line(self) -> str:
        r = self.report
        over = "" if self.fits else f" {r.ram.total - self.limit:,} over {NETS[self.net]} KB"
        name = f"{self.net:15} {self.scheme:6} {8 * self.ws:2} bit"
        arena = f"arena {r.ram.arena:7,} bound {r.arena_lower_bound:7,} ({r.arena_ratio:.3f})"
        macs = f"MACs {r.macs['forward']:,} + {r.macs['backward']:,}"
        return f"{name}  {arena}  state {r.ram.state:7,}  RAM in all {r.ram.total:7,}  {macs}{over}"


def train_words(net: str, scheme: str) -> str:
    """The scheme in the words of --train: layers by number; the published count of biases is without the head."""
    published = json.loads(shared(f"{FOLDER}/sparse_update_schemes.json").read_text())["models"][net]["schemes"][scheme]
    pairs = zip(published["manual_weight_idx"], published["weight_update_ratio"], strict=True)
    return ",".join(["head", f"bias:{published['n_bias_update'] + 1}", *(f"weights:{k}:{ratio}" for k, ratio in pairs if ratio)])


@functools.cache
def compiled(net: str, scheme: str, ws: int) -> Compiled:
    return compile_model(shared(f"{FOLDER}/{net}_int8.tflite"), train_words(net, scheme), CLASSES, Options(ws=ws))


@functools.cache
def row(net: str, scheme: str, ws: int) -> Row:
    return Row(net, scheme, ws, report(compiled(net, scheme, ws), find_board(BOARD)))
