"""RAM of the 15 published sparse-update schemes of MCUNet, MobileNetV2 and ProxylessNAS. `pytest tests/size/test_published_schemes.py -s`
prints the table; `make bench` prints it whole."""

from __future__ import annotations

import time

import pytest

from helpers.published import ALL, CLASSES, NETS, compiled, row, train_words
from helpers.shared import shared
from mcugrad.pipeline import compile_model

TOO_LARGE = {
    ("mbv2-w0.35", "123kb"),
    ("mbv2-w0.35", "138kb"),
    ("proxyless-w0.3", "120kb"),
    ("proxyless-w0.3", "148kb"),
}
"""These do not fit the paper's figure: STATE and the sample alone are too much."""

SAMPLE = 128 * 128 * 3


@pytest.mark.qemu
@pytest.mark.parametrize("net, scheme", [("mbv2-w0.35", "49kb"), ("proxyless-w0.3", "98kb"), ("mcunet-5fps", "148kb")])
def test_a_published_scheme_fits_what_the_paper_needs(net: str, scheme: str) -> None:
    check(net, scheme)


@pytest.mark.qemu
@pytest.mark.slow
@pytest.mark.parametrize("net, scheme", ALL)
def test_every_published_scheme(net: str, scheme: str) -> None:
    check(net, scheme)


def check(net: str, scheme: str) -> None:
    wide, narrow = row(net, scheme, 2), row(net, scheme, 1)
    for r in (wide, narrow):
        print(r.line())
        assert r.report.ram.arena <= 1.02 * r.report.arena_lower_bound
        assert r.report.macs_again == 0
    if (net, scheme) in TOO_LARGE:
        assert narrow.report.ram.state + SAMPLE > narrow.limit - narrow.report.ram.stack - narrow.report.ram.runtime - 4096
    else:
        assert narrow.fits


@pytest.mark.qemu
def test_mcunet_trains_in_128_kb() -> None:
    """The 49 KB scheme with 16-bit weights, stack and the trainer's own variables included. MIT's engine takes 252,408 bytes."""
    found = row("mcunet-5fps", "49kb", 2)
    print(found.line())
    assert (found.report.trained_weights, found.report.trained_biases) == (13_696, 4_602)
    assert found.report.macs == {"forward": 22_455_104, "backward": 9_929_600}
    assert found.report.ram.total <= 131_072


def test_planning_mcunet_takes_less_than_ten_seconds() -> None:
    path, words = shared("models/tiny_training/mcunet-5fps_int8.tflite"), train_words("mcunet-5fps", "49kb")
    start = time.process_time()
    compile_model(path, words, CLASSES)
    assert time.process_time() - start < 10


def test_the_steps_of_every_net_are_the_same_in_stripes() -> None:
    for net in NETS:
        found = compiled(net, "49kb", 1)
        assert len(found.program.steps) > len(found.lowered.steps)
        assert sum(found.program.step_macs) == sum(found.lowered.step_macs)
