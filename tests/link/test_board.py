"""Boards: their files, their builds, how they start and end."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from serial.tools import list_ports as serial_ports

from mcugrad.board import Firmware, Kind, build, find_board, list_ports, load_boards, open_board, table
from mcugrad.errors import FitError, LinkError, McugradError, UnavailableError, UsageError
from mcugrad.link import Session, TickUnit

GOOD = (Path(table.boards_dir()) / "qemu-mps2-an386" / "board.toml").read_text(encoding="utf-8")


def write_board(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "qemu-mps2-an386" / "board.toml"
    path.parent.mkdir()
    path.write_text(text, encoding="utf-8")
    return path


def test_the_boards_of_this_version() -> None:
    boards = load_boards()
    cores = {"an385": "m3", "an386": "m4", "an500": "m7", "an505": "m33"}
    assert {f"qemu-mps2-{image}": f"cortex-{core}" for image, core in cores.items()}.items() <= {
        b.name: b.core for b in boards.values()
    }.items()
    assert {"host", "qemu-mps3-an547"} <= set(boards)
    assert boards["qemu-mps2-an500"].ram_bytes == 327_680
    an547 = boards["qemu-mps3-an547"]
    assert (an547.core, an547.tick_mul, an547.tick_div) == ("cortex-m55", 125, 4)
    an386 = boards["qemu-mps2-an386"]
    assert (an386.kind, an386.ram_bytes, an386.flash_bytes) == (Kind.QEMU, 262_144, 1_048_576)
    assert (an386.tick_unit, an386.tick_mul, an386.tick_div) == (TickUnit.INSTRUCTIONS, 40, 1)


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ('kind = "qemu"', 'kind = "fpga"', "kind must be one of host, qemu, renode, hardware, serial"),
        ("ram_bytes = 262_144", "ram_bytes = 0", "ram_bytes must be an integer above 0"),
        ("ram_bytes = 262_144", "ram_bytes = 8_000", "stack_bytes must be with rx_ring_bytes less than ram_bytes"),
        ("firmware_bytes = 131_072", "firmware_bytes = 1_048_576", "firmware_bytes must be less than flash_bytes"),
        ("checkpoint_bytes = 131_072", "checkpoint_bytes = 100", "checkpoint_bytes must be a multiple of 32"),
        ("checkpoint_bytes = 131_072", "checkpoint_bytes = -32", "checkpoint_bytes must be an integer above 0"),
        ('name = "qemu-mps2-an386"', 'name = "other"', "name must be the name of its folder, qemu-mps2-an386"),
        ('unit = "instructions"', 'unit = "hours"', "unit must be one of none, instructions"),
        ('machine = "mps2-an386"', "", "machine must be a text"),
        ("[qemu]", "[emulator]", "emulator is not a key"),
        ('core = "cortex-m4"', "", "core must be a text"),
        ("mul = 40", "mul = true", "mul must be an integer above 0"),
        ("[tick]", "[tick", "Expected"),
    ],
)
def test_a_wrong_board_file_says_what_is_wrong(tmp_path: Path, old: str, new: str, text: str) -> None:
    assert old in GOOD
    with pytest.raises(McugradError, match=text):
        table.parse_board(write_board(tmp_path, GOOD.replace(old, new)))


def test_a_near_miss_is_suggested() -> None:
    with pytest.raises(UsageError, match=r"there is no board 'qemu-mps2-an368'.*did you mean qemu-mps2-an386\?.*boards: host"):
        find_board("qemu-mps2-an368")


@pytest.mark.parametrize("spec", ["serial:", "serial::115200", "serial:/dev/ttyX:0"])
def test_a_serial_board_needs_a_port(spec: str) -> None:
    with pytest.raises(UsageError, match="names no serial port"), open_board(spec):
        pass


def test_a_serial_port_may_have_colons() -> None:
    with (
        pytest.raises(UnavailableError, match="there is no port /dev/serial/by-path/pci-0:1-port0"),
        open_board("serial:/dev/serial/by-path/pci-0:1-port0"),
    ):
        pass


def test_a_process_on_a_pty_is_a_serial_board_too(host_firmware: Firmware) -> None:
    with open_board("host", host_firmware) as (_, line):
        path = line._serial.port  # type: ignore[attr-defined]
        line.close()
        with open_board(f"serial:{path}:9600") as (board, serial_line):
            assert board.kind is Kind.SERIAL
            assert Session(serial_line, deadline_s=5.0).hello().board == "host"


def children(name: str) -> list[str]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            pid, rest = entry.read_text().split(" ", 1)
        except OSError:
            continue
        fields = rest.rsplit(")", 1)
        if fields[0] == f"({name}" and int(fields[1].split()[1]) == os.getpid() and fields[1].split()[0] != "Z":
            found.append(pid)
    return found


def test_the_process_ends_with_the_context(host_firmware: Firmware) -> None:
    with open_board("host", host_firmware):
        assert len(children("trainer")) == 1
    assert children("trainer") == []
    with pytest.raises(ZeroDivisionError), open_board("host", host_firmware):
        raise ZeroDivisionError
    assert children("trainer") == []


def test_the_process_ends_when_its_stdin_closes(host_firmware: Firmware, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("subprocess.Popen.terminate", lambda _process: None)
    start = time.monotonic()
    with open_board("host", host_firmware):
        pass
    assert time.monotonic() - start < 1.5


def test_a_process_that_dies_is_a_link_error(host_firmware: Firmware) -> None:
    with open_board("host", host_firmware) as (_, line):
        session = Session(line, deadline_s=5.0)
        session.hello()
        os.kill(int(children("trainer")[0]), 9)
        with pytest.raises(LinkError, match="host went away"):
            session.stats()


def test_without_an_emulator(monkeypatch: pytest.MonkeyPatch) -> None:
    which = shutil.which
    monkeypatch.setattr(shutil, "which", lambda tool: None if tool == "qemu-system-arm" else which(tool))
    with (
        pytest.raises(UnavailableError, match=r"qemu-system-arm is not on PATH.*apt install qemu-system-arm") as e,
        open_board("qemu-mps2-an386"),
    ):
        pass
    assert e.value.exit_code == 69


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    which = shutil.which
    monkeypatch.setattr(shutil, "which", lambda tool: None if tool == "arm-none-eabi-gcc" else which(tool))
    with pytest.raises(UnavailableError, match="apt install gcc-arm-none-eabi libnewlib-arm-none-eabi"):
        find_board("qemu-mps2-an386").build()


def test_a_linker_overflow_is_one_line(tmp_path: Path) -> None:
    map_file = tmp_path / "trainer.map"
    map_file.write_text(
        " .text.mg_small 0x0010 0x10 a.o\n .text.mg_large\n                0x0020     0x4000 b.o\n .bss.session 0x2000 0x800 c.o\n"
    )
    output = (
        f"FAILED: trainer.elf\narm-none-eabi-gcc -Wl,-Map={map_file} -o trainer.elf\n"
        "ld: trainer.elf section `.bss' will not fit in region `RAM'\nld: region `RAM' overflowed by 14880 bytes\n"
        "ld: region `FLASH' overflowed by 64 bytes\ncollect2: error: ld returned 1 exit status\n"
    )
    e = build.build_error(output, "qemu-mps2-an386")
    assert isinstance(e, FitError) and "\n" not in str(e)
    assert "RAM overflows by 14,880 bytes, FLASH overflows by 64 bytes" in str(e)
    assert "mg_large 16,384, session 2,048, mg_small 16" in str(e)


def test_a_compiler_error_is_one_line() -> None:
    e = build.build_error("cc -Werror -c a.c\na.c:3:1: error: unknown type name 'x'\nninja: build stopped", "host")
    assert "a.c:3:1: error: unknown type name 'x'" in str(e) and "\n" not in str(e)


def test_probes_come_first_and_have_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def port(device: str, vid: int | None, pid: int | None) -> SimpleNamespace:
        return SimpleNamespace(device=device, description="n/a", vid=vid, pid=pid, serial_number=None)

    found = [port("/dev/ttyS0", None, None), port("/dev/ttyUSB1", 0x12D1, 0x1001), port("/dev/ttyACM0", 0x0483, 0x374B)]
    monkeypatch.setattr(serial_ports, "comports", lambda: found)
    assert [(p.device, p.probe) for p in list_ports()] == [("/dev/ttyACM0", "ST-LINK/V2-1"), ("/dev/ttyUSB1", ""), ("/dev/ttyS0", "")]
