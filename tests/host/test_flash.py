"""mcugrad flash, with tools that stand in for pyOCD and OpenOCD: their flash is a file, and they fail as the real ones do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from helpers.cli import HEED_CTRL_C, Done, finished, mcugrad
from mcugrad.board import Board, Firmware, build, find_board, probes
from mcugrad.board import flash as flash_module
from mcugrad.paths import root

BOARD = "nucleo-f446re"
IMAGE = bytes(i * 7 % 251 for i in range(5000))

TOOL = textwrap.dedent(
    """\
    #!{python}
    import json, os, pathlib, re, sys, time
    say = json.loads(pathlib.Path({folder!r}, "behaviour.json").read_text())
    flash = pathlib.Path({folder!r}, "flash.bin")
    with open(pathlib.Path({folder!r}, "calls.jsonl"), "a") as log:
        log.write(json.dumps(sys.argv) + "\\n")
    words = " ".join(sys.argv[1:])
    writes = "load" in sys.argv or "flash write_image" in words
    under = "under-reset" in words or "connect_assert_srst" in words
    if say.get("hangs"):
        time.sleep(60)
    if say.get("says") and not (under and say.get("reset_cures")):
        print(say["says"], file=sys.stderr)
        if say.get("code"):
            sys.exit(say["code"])
        if say.get("does_nothing"):
            sys.exit(0)
    if writes:
        flash.write_bytes(pathlib.Path("image.bin").read_bytes())
    else:
        found = re.search(r"(?:savemem|dump_image back.bin) (0x[0-9a-f]+) (\\d+)", words)
        size = int(found[2]) if found else 0
        back = bytearray(flash.read_bytes()[:size] if flash.exists() else b"\\xff" * size)
        if "wrong_at" in say:
            back[say["wrong_at"]] ^= 0x10
        pathlib.Path("back.bin").write_bytes(back)
    """
)


@dataclass
class Bench:
    """A folder that is PATH, and a USB tree."""

    folder: Path

    def install(self, name: str) -> None:
        tool = self.folder / "bin" / name
        tool.write_text(TOOL.format(python=sys.executable, folder=str(self.folder)), encoding="utf-8")
        tool.chmod(0o755)

    def behave(self, **how: object) -> None:
        (self.folder / "behaviour.json").write_text(json.dumps(how), encoding="utf-8")

    def plug(self, serial: str, vendor: str = "0483", product: str = "374b", name: str = "STM32 STLink", device: int = 7) -> Path:
        entry = self.folder / "usb" / f"1-{device}"
        entry.mkdir(parents=True)
        facts = {"idVendor": vendor, "idProduct": product, "product": name, "serial": serial, "busnum": "1", "devnum": str(device)}
        for key, value in facts.items():
            (entry / key).write_text(value + "\n", encoding="utf-8")
        node = self.folder / "dev" / "001" / f"{device:03}"
        node.parent.mkdir(parents=True, exist_ok=True)
        node.touch()
        return node

    @property
    def calls(self) -> list[list[str]]:
        log = self.folder / "calls.jsonl"
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

    @property
    def flash(self) -> bytes:
        return (self.folder / "flash.bin").read_bytes()


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    for name in ("bin", "usb", "dev"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(probes, "SYSFS", tmp_path / "usb")
    monkeypatch.setattr(probes, "NODES", tmp_path / "dev")
    monkeypatch.setattr(probes, "list_ports", lambda: [])
    monkeypatch.setattr(flash_module.importlib.util, "find_spec", lambda _name: None)
    monkeypatch.setattr(Board, "build", lambda _board: Firmware(Path(), 0, 0))
    monkeypatch.setattr(flash_module, "image_bytes", lambda _firmware: IMAGE)
    out = Bench(tmp_path)
    out.behave()
    yield out


def flash(*more: str, board: str = BOARD) -> Done:
    return mcugrad("flash", "--board", board, *more)


@pytest.mark.parametrize("tool", ["pyocd", "openocd"])
def test_a_board_is_written_and_read_back(bench: Bench, tool: str) -> None:
    bench.install(tool)
    bench.plug("0668FF")
    done = flash("--json")
    assert done.result["backend"] == tool and done.result["bytes"] == len(IMAGE) and done.result["probe"]["id"] == "0668FF"
    assert not done.result["under_reset"]
    assert bench.flash == IMAGE
    assert len(bench.calls) == 2
    assert all("0668FF" in " ".join(call) for call in bench.calls)


def test_what_the_tools_are_told(bench: Bench) -> None:
    bench.install("pyocd")
    bench.install("openocd")
    bench.plug("000683", vendor="1366", product="1061", name="J-Link")
    flash("--backend", "pyocd", board="nrf52840-dk")
    flash("--backend", "openocd", board="nrf52840-dk")
    load, save, write, dump = (" ".join(call[1:]) for call in bench.calls)
    assert load.startswith("load ") and "--target nrf52840" in load and "--base-address 0x0 image.bin" in load and "--uid 683 " in load
    assert save.startswith("commander ") and f"savemem 0x0 {len(IMAGE)} back.bin" in save and save.endswith("--command reset")
    setup = "-f interface/jlink.cfg -c transport select swd -f target/nrf52.cfg -c adapter serial 683 -c init -c reset halt"
    assert write == f"{setup} -c flash write_image erase image.bin 0x0 bin -c reset run -c shutdown"
    assert dump == f"{setup} -c dump_image back.bin 0x0 {len(IMAGE)} -c reset run -c shutdown"


def test_d73_no_tool_lists_the_back_ends_and_how_to_get_them(bench: Bench) -> None:
    bench.plug("0668FF")
    flash().fails(69, "no flashing tool is installed", r"pyocd: pip install 'mcugrad\[flash\]'", "openocd: apt install openocd")
    flash("--backend", "openocd").fails(69, "openocd is not installed", "apt install openocd")


def test_d73_the_order_of_auto_is_printed(bench: Bench) -> None:
    bench.install("openocd")
    bench.plug("0668FF")
    done = flash()
    assert done.code == 0, done.err
    assert f"back ends, in the order of auto: pyocd (missing), openocd ({bench.folder}/bin/openocd)" in done.out


def test_d74_a_tool_that_prints_an_error_and_exits_with_0_is_not_believed(bench: Bench) -> None:
    bench.install("pyocd")
    bench.plug("0668FF")
    bench.behave(says="0000831 E flash program page failed [load_cmd]", does_nothing=True)
    flash().fails(69, "read back 0 of 5,000 bytes: flash program page failed")


def test_d74_other_bytes_in_the_flash_are_exit_7_with_their_address(bench: Bench) -> None:
    bench.install("pyocd")
    bench.plug("0668FF")
    bench.behave(wrong_at=4321)
    flash().fails(7, "1 of 5,000 bytes in the flash of nucleo-f446re", f"0x080010e1: {IMAGE[4321] ^ 0x10:#04x}, not {IMAGE[4321]:#04x}")


def test_d74_a_tool_that_only_grumbles_has_done_its_work(bench: Bench) -> None:
    bench.install("pyocd")
    bench.plug("0668FF")
    bench.behave(says="Error: no reset line")
    assert flash().code == 0
    assert bench.flash == IMAGE


def test_d74_a_short_read_back_is_not_enough(bench: Bench) -> None:
    bench.plug("0668FF")
    bench.install("openocd")
    tool = bench.folder / "bin" / "openocd"
    tool.write_text(tool.read_text().replace("write_bytes(back)", "write_bytes(back[:-1])"))
    flash("--backend", "openocd").fails(69, "openocd read back 4,999 of 5,000 bytes")


def test_d74_ctrl_c_is_130_whatever_the_tool_makes_of_it(bench: Bench) -> None:
    bench.install("pyocd")
    bench.plug("0668FF")
    bench.behave(hangs=True)
    tool = bench.folder / "bin" / "pyocd"
    tool.write_text(tool.read_text().replace("import json,", "import signal; signal.signal(2, lambda *_: sys.exit(0))\nimport json,"))
    patches = f"""
    {HEED_CTRL_C}
    import pathlib
    from mcugrad.board import Board, Firmware, flash, probes
    probes.SYSFS, probes.NODES = pathlib.Path({str(bench.folder / "usb")!r}), pathlib.Path({str(bench.folder / "dev")!r})
    Board.build = lambda board: Firmware(pathlib.Path(), 0, 0)
    flash.image_bytes = lambda firmware: bytes(100)
    from mcugrad.cli import main
    main()
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(patches), "flash", "--board", BOARD],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 30
    while not bench.calls and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    done = finished(process, 20)
    done.fails(130, "interrupted")
    assert "may be half written, flash it again" in done.out


@pytest.mark.parametrize("said", ["usb.core.USBError: [Errno 13] Access denied (insufficient permissions)", "LIBUSB_ERROR_ACCESS"])
def test_d76_no_permission_names_the_node_and_the_fix(bench: Bench, said: str) -> None:
    bench.install("pyocd")
    node = bench.plug("0668FF")
    bench.behave(says=said)  # and exits with 0
    flash().fails(77, str(node), "0668FF", 'ATTR{idVendor}=="0483"', "udevadm", "usermod -aG dialout")


def test_d76_no_permission_is_seen_before_any_tool_runs(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.install("openocd")
    node = bench.plug("0668FF")
    monkeypatch.setattr(os, "access", lambda path, _mode: str(path) != str(node))
    monkeypatch.setattr(flash_module, "choose_backend", lambda _name, _say: (flash_module.BACKENDS["openocd"], ["openocd"]))
    flash().fails(77, str(node))
    assert not bench.calls


@pytest.mark.parametrize("tool", ["pyocd", "openocd"])
@pytest.mark.parametrize("code", [0, 1])
def test_d77_a_second_try_under_reset_is_told(bench: Bench, tool: str, code: int) -> None:
    bench.install(tool)
    bench.plug("0668FF")
    bench.behave(says="Error: cannot read IDR, target not halted", code=code, does_nothing=code == 0, reset_cures=True)
    done = flash()
    assert done.code == 0, done.err
    assert "cannot read IDR" in done.out and "second try with the reset line held (connect under reset)" in done.out
    assert "read back and equal (connected under reset)" in done.out
    assert bench.flash == IMAGE


def test_d77_a_second_failure_is_the_end(bench: Bench) -> None:
    bench.install("openocd")
    bench.plug("0668FF")
    bench.behave(says="Error: init mode failed (unable to connect to the target)", code=1)
    flash().fails(69, "openocd ended with 1: Error: init mode failed", "--backend pyocd")
    assert len(bench.calls) == 2


def test_no_probe(bench: Bench) -> None:
    bench.install("pyocd")
    flash().fails(69, "no debug probe is connected", "cable")


def test_several_probes_are_listed_and_one_is_chosen(bench: Bench) -> None:
    bench.install("pyocd")
    bench.plug("0668FF", device=7)
    bench.plug("0671AA", device=8)
    bench.plug("E66038", vendor="ffff", product="0001", name="My CMSIS-DAP v2", device=9)
    flash().fails(2, "3 debug probes", r"0668FF \(ST-LINK/V2-1\), 0671AA", r"E66038 \(My CMSIS-DAP v2\)", "--probe ID")
    assert flash("--probe", "71a", "--json").result["probe"]["id"] == "0671AA"
    assert "0671AA" in bench.calls[0]


def test_d78_a_probe_that_is_nearly_named(bench: Bench) -> None:
    bench.install("pyocd")
    bench.plug("0668FF383633", device=7)
    flash("--probe", "0668FF383363").fails(2, "there is no probe '0668FF383363'", r"did you mean 0668FF383633\?")


def test_d78_a_board_that_is_nearly_named(bench: Bench) -> None:
    flash(board="nucleo-f466re").fails(2, r"did you mean nucleo-f446re\?")


@pytest.mark.parametrize("board", ["host", "qemu-mps2-an386", "renode-mps2-an386"])
def test_an_emulated_board_needs_no_flashing(bench: Bench, board: str) -> None:
    flash(board=board).fails(2, f"board {board} needs no flashing", f"mcugrad train … --board {board}")


def test_an_unknown_target_names_the_pack(bench: Bench) -> None:
    bench.install("pyocd")
    bench.plug("0668FF")
    bench.behave(says="0000727 C Target type stm32f446retx not recognized. Use 'pyocd list --targets' [__main__]", code=1)
    flash().fails(69, "does not know the target stm32f446retx", "pyocd pack install stm32f446retx", "--backend openocd")


SCHEMA: dict[str, dict[str, type | tuple[type, ...]]] = {
    "board": {"name": str, "title": str, "core": str, "kind": str, "ram_bytes": int, "flash_bytes": int},
    "flash": {"base": int, "pyocd": str, "pyocd_pack": bool, "openocd": (list, tuple)},
    "uart": {"baud": int, "wiring": str},
    "probe": {"id": str, "name": str, "usb_id": str, "node": str, "port": str, "accessible": bool},
}


def obeys(name: str, found: dict[str, object], optional: frozenset[str] = frozenset()) -> None:
    assert set(SCHEMA[name]) == set(found) - optional
    assert all(isinstance(found[key], kind) for key, kind in SCHEMA[name].items()), found


def test_d78_boards_and_probes_as_json(bench: Bench) -> None:
    bench.plug("0668FF")
    found = mcugrad("boards", "--detect", "--json").result
    assert set(found) == {"boards", "probes"} and len(found["probes"]) == 1
    obeys("probe", found["probes"][0])
    for board in found["boards"]:
        obeys("board", board, frozenset({"flash", "uart"}))
        assert ("flash" in board) == ("uart" in board) == (board["kind"] == "hardware")
        if "flash" in board:
            obeys("flash", board["flash"])
            obeys("uart", board["uart"])
    assert set(mcugrad("boards", "--json").result) == {"boards"}


@pytest.mark.qemu
def test_d72_build_shows_the_regions(tmp_path: Path) -> None:
    model = root() / "examples" / "watch" / "watch_base.tflite"
    found = mcugrad("build", model, "--board", BOARD, "--out", tmp_path, "--json").result["regions"]
    assert [r["name"] for r in found] == ["FLASH", "RAM", "SLOT"]
    for r in found:
        assert set(r) == {"name", "used_bytes", "total_bytes", "percent"}
        assert r["percent"] == round(100 * r["used_bytes"] / r["total_bytes"], 1) > 0
    assert "FLASH: " in mcugrad("build", "--board", BOARD, "--out", tmp_path).out
    assert found[2]["used_bytes"] == (tmp_path / "plan.bin").stat().st_size


@pytest.mark.qemu
def test_d71_a_link_that_overflows_names_the_plan_and_the_largest_symbols(tmp_path: Path) -> None:
    source, image, map_file = tmp_path / "app.c", tmp_path / "app.elf", tmp_path / "app.map"
    source.write_text(
        "#include <stdint.h>\nconst uint8_t mcugrad_plan[300000] = {1}; uint8_t memory[200000]; const uint8_t other[50] = {2};\n"
        "void reset_handler(void) { for (;;) memory[mcugrad_plan[memory[0]]] = other[1]; }\n"
    )
    board = find_board(BOARD)
    sizes = {"ram": board.ram_bytes, "flash": board.flash_bytes, "firmware": board.firmware_bytes, "stack": 2048, "checkpoint": 0}
    common = root() / "boards"
    command = ["arm-none-eabi-gcc", "-mcpu=cortex-m4", "-mthumb", "-nostartfiles", "-ffunction-sections", "-fdata-sections", str(source)]
    command += [f"-Wl,--defsym=mg_{name}_bytes={size}" for name, size in sizes.items()]
    command += [f"-Wl,-Map={map_file}", "-L", str(common / "common"), "-T", str(common / BOARD / "link.ld"), "-o", str(image)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    e = build.build_error(" ".join(command) + "\n" + done.stdout + done.stderr, BOARD)
    assert e.exit_code == 8 and "\n" not in str(e)
    text = str(e)
    assert "FLASH overflows by 16" in text and "RAM overflows by 7" in text
    assert "the plan has 300,000 bytes; largest symbols: mcugrad_plan 300,000, memory 200,000" in text
