"""The loss curve as an SVG picture, drawn without a plotting library."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 720, 360
LEFT, RIGHT, TOP, BOTTOM = 60, 20, 40, 50


def _moving_average(values: Sequence[float], window: int) -> list[float]:
    out, total = [], 0.0
    for k, v in enumerate(values):
        total += v
        if k >= window:
            total -= values[k - window]
        out.append(total / min(k + 1, window))
    return out


def _high(losses: Sequence[float]) -> float:
    """The loss that all but one in fifty stay below."""
    return sorted(losses)[len(losses) * 49 // 50] if losses else 0.0


def _ticks(top: float) -> list[float]:
    return [top * k / 4 for k in range(5)]


def write_curve(path: Path, losses: Sequence[float], epochs: int, title: str) -> None:
    """Draw every sample's loss as a dot and its moving average as a line; one vertical line an epoch.

    A few large losses do not flatten the picture: dots above the scale stand at its top.
    """
    average = _moving_average(losses, max(len(losses) // 20, 1))
    top = 1.05 * max(max(average, default=1.0), _high(losses), 1e-3)
    n = max(len(losses), 2)
    wide, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def at(k: float, v: float) -> tuple[float, float]:
        return LEFT + wide * k / (n - 1), TOP + high * (1 - v / top)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="24" font-size="15">{escape(title)}</text>',
    ]
    for v in _ticks(top):
        _, y = at(0, v)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e0e0e0"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{v:.2f}</text>')
    for epoch in range(epochs + 1):
        x, _ = at((n - 1) * epoch / max(epochs, 1), 0)
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" stroke="#f0f0f0"/>')
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{epoch}</text>')
    parts.append(f'<text x="{LEFT + wide / 2}" y="{HEIGHT - 12}" text-anchor="middle">epoch</text>')
    for k, v in enumerate(losses):
        x, y = at(k, min(v, top))
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="1.5" fill="#9ecae1"/>')
    line = " ".join("{:.1f},{:.1f}".format(*at(k, v)) for k, v in enumerate(average))
    parts.append(f'<polyline points="{line}" fill="none" stroke="#08519c" stroke-width="2"/>')
    parts.append("</svg>")
    path.write_text("\n".join(parts) + "\n", encoding="utf-8")
