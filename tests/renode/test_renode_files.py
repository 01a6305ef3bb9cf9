"""The files that Renode reads are right where that can be seen without it: grammar, addresses, interrupts, time, names, keywords."""

from __future__ import annotations

import functools
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.renode_files import Platform, RenodeFileError, parse_repl, parse_resc, read_repl
from mcugrad.board import Kind, load_boards
from mcugrad.board.table import parse_board
from mcugrad.errors import McugradError
from mcugrad.link import frame
from mcugrad.link.protocol import PROTOCOL, Command
from mcugrad.paths import boards_dir
from renode import renode_keywords
from renode.conftest import FakeRenode

ROBOTS = sorted(Path(__file__).parent.glob("*.robot"))
BOARDS = {name: board for name, board in load_boards().items() if board.kind is Kind.RENODE}
CPUS = {
    "cortex-m3": "cortex-m3",
    "cortex-m4": "cortex-m4f",
    "cortex-m7": "cortex-m7",
    "cortex-m33": "cortex-m33",
    "cortex-m55": "cortex-m55",
}

# What Renode 1.16.1 ships, as far as our images use it: memories, and the UART with its address and interrupt.
SHIPPED_MEMORY = {
    "platforms/cpus/stm32f746.repl": [(0x20000000, 0x60000), (0x08000000, 0x200000)],
    "platforms/cpus/stm32f4.repl": [(0x20000000, 0x40000), (0x08000000, 0x200000)],
    "platforms/cpus/nrf52840.repl": [(0x20000000, 0x40000), (0x00000000, 0x100000)],
}
SHIPPED_UART = {
    "platforms/cpus/stm32f746.repl": ("usart1", 0x40011000, 37),
    "platforms/cpus/stm32f4.repl": ("usart2", 0x40004400, 38),
    "platforms/cpus/nrf52840.repl": ("uart0", 0x40002000, 2),
}


def platform(name: str) -> Platform:
    return read_repl(boards_dir() / name / "renode.repl")


@functools.cache
def symbols(image: str) -> dict[str, int]:
    listing = subprocess.run(["arm-none-eabi-nm", str(load_boards()[image].build().elf)], capture_output=True, text=True, check=True).stdout
    rows = (line.split() for line in listing.splitlines())
    return {row[2]: int(row[0], 16) for row in rows if len(row) == 3}


@functools.cache
def defines(image: str) -> dict[str, int]:
    """The BOARD_… of the compiler's command lines."""
    commands = load_boards()[image].build().elf.parent / "compile_commands.json"
    return {key: int(value, 0) for key, value in re.findall(r"-D(BOARD_\w+)=(0x[0-9A-Fa-f]+|\d+)", commands.read_text())}


def test_every_image_that_renode_can_run_has_a_board() -> None:
    images = {board.image for board in BOARDS.values()}
    assert images == {name for name in load_boards() if name.startswith("qemu-")} | {"stm32f746g-disco", "nucleo-f446re", "nrf52840-dk"}


@pytest.mark.parametrize("name", BOARDS)
def test_its_sizes_are_those_of_its_image(name: str) -> None:
    board = BOARDS[name]
    image = load_boards()[board.image]
    for fact in ("core", "ram_bytes", "flash_bytes", "firmware_bytes", "stack_bytes", "rx_ring_bytes", "tick_mul", "tick_div"):
        assert getattr(board, fact) == getattr(image, fact)
    assert board.tick_unit.name == "INSTRUCTIONS"


@pytest.mark.parametrize("name", BOARDS)
def test_an_instruction_lasts_a_nanosecond_and_a_tick_is_what_the_image_says(name: str) -> None:
    found = platform(name)
    cpu, dwt = found.entries["cpu"], found.entries["dwt"]
    assert cpu.number("PerformanceInMips") == 1000
    assert (dwt.type, dwt.base) == ("Miscellaneous.DWT", 0xE0001000)
    assert dwt.number("frequency") == cpu.number("PerformanceInMips") * 1_000_000
    if not found.using:
        instructions = cpu.number("PerformanceInMips") * 1_000_000 / found.entries["nvic"].number("systickFrequency")
        assert instructions == BOARDS[name].tick_mul / BOARDS[name].tick_div


@pytest.mark.parametrize("name", BOARDS)
def test_core_and_uart(name: str) -> None:
    found, board, built = platform(name), BOARDS[name], defines(BOARDS[name].image)
    uart = board.renode_uart.removeprefix("sysbus.")
    if found.using:
        shipped, base, irq = SHIPPED_UART[found.using[0]]
        assert shipped == uart
        assert built.get("BOARD_USART_BASE", base) == base
        assert built["BOARD_LINE_IRQ"] == irq
        assert found.entries["cpu"].type == ""
        return
    assert found.entries["cpu"].values["cpuType"] == f'"{CPUS[board.core]}"'
    entry = found.entries[uart]
    assert entry.type == "UART.CMSDK_APB_UART"
    assert entry.base == built["BOARD_UART0_BASE"]
    assert entry.interrupts["RxInterrupt"] == ("nvic", built["BOARD_LINE_IRQ"])


@pytest.mark.parametrize("name", BOARDS)
def test_all_that_the_image_uses_is_memory(name: str) -> None:
    found, at = platform(name), symbols(BOARDS[name].image)
    memories = found.memories() + [m for used in found.using for m in SHIPPED_MEMORY[used]]

    def inside(start: str, end: str) -> bool:
        return any(base <= at[start] <= at[end] <= base + size for base, size in memories)

    assert inside("board_firmware_start", "board_firmware_end")
    assert inside("board_stack_bottom", "board_pool_end")
    assert inside("board_slot_start", "board_slot_end")
    end = at["board_checkpoints_start"] + 2 * BOARDS[name].checkpoint_bytes
    assert any(base <= at["board_checkpoints_start"] and end <= base + size for base, size in memories)


def test_the_m55_s_image_has_no_mve() -> None:
    """Renode 1.16.1 faults at some of its instructions."""
    elf = BOARDS["renode-mps3-an547"].build().elf
    listing = subprocess.run(["arm-none-eabi-objdump", "-d", str(elf)], capture_output=True, text=True, check=True).stdout
    assert not re.search(r"\bq[0-7]\b", listing)


@pytest.mark.parametrize("name", BOARDS)
def test_its_script(name: str) -> None:
    commands = parse_resc((boards_dir() / name / "renode.resc").read_text(encoding="utf-8"))
    assert commands[0] == ["$name", "?=", f'"{name}"']
    assert ["machine", "LoadPlatformDescription", "$ORIGIN/renode.repl"] in commands
    macro = next(words for words in commands if words[:2] == ["macro", "reset"])[2]
    assert macro.splitlines()[0] == "sysbus LoadELF $bin"
    vectors = re.search(r"^sysbus\.cpu VectorTableOffset (0x[0-9a-f]{8})$", macro, re.M)
    assert vectors is not None and int(vectors[1], 16) == symbols(BOARDS[name].image)["board_firmware_start"]
    assert commands[-1] == ["runMacro", "$reset"]
    assert not [words for words in commands if "Socket" in " ".join(words) or "start" in words], "the caller opens the line and starts"


def test_platforms_of_renode_are_loaded_without_the_network() -> None:
    for name in BOARDS:
        found = platform(name)
        if found.using:
            assert found.entries["sysbus"].init, "it replaces the init with ApplySVD @https://…"
        assert "http" not in (boards_dir() / name / "renode.repl").read_text()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("cpu: CPU.CortexM @ sysbus\n  cpuType: 1\n", "indented by 2"),
        ("cpu: CPU.CortexM @ sysbus\n\tcpuType: 1\n", "indented"),
        ('cpu: CPU.CortexM @ sysbus\n    cpuType: "cortex-m4\n', "line 2"),
        ("flash: Memory.MappedMemory @ sysbus 0x0\n    size: 0xZ\n", "line 2"),
        ("cpu:\n    PerformanceInMips: 1\n", "declared twice, or nowhere"),
        ('dwt: Miscellaneous.DWT @ sysbus 0xE0001000\n    frequency: 1\n\nusing "a.repl"\n', "using comes before"),
        ("uart0: UART.PL011 @ sysbus 0x4000\n    RxInterrupt -> nvic\n", "line 2"),
        ("sysbus:\n    init:\n        ApplySVD\n", "line 3"),
    ],
)
def test_a_wrong_platform_is_seen(text: str, says: str) -> None:
    with pytest.raises(RenodeFileError, match=says):
        parse_repl(text)


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ('image = "qemu-mps2-an386"', 'image = "qemu-mps2-an387"', "image must be the name of another folder"),
        ('image = "qemu-mps2-an386"', 'image = "renode-mps2-an386"', "image must be the name of another folder"),
        ('uart = "sysbus.uart0"', "", "uart must be a text"),
        ('version = "1.15.2"', 'version = "newest"', "version must be a version such as 1.16.1"),
        ("[renode]", "[renude]", "renude is not a key"),
    ],
)
def test_a_wrong_board_file_says_what_is_wrong(tmp_path: Path, old: str, new: str, text: str) -> None:
    good = (boards_dir() / "renode-mps2-an386" / "board.toml").read_text(encoding="utf-8")
    assert old in good
    path = tmp_path / "renode-mps2-an386" / "board.toml"
    path.parent.mkdir()
    path.write_text(good.replace(old, new), encoding="utf-8")
    (tmp_path / "qemu-mps2-an386").symlink_to(boards_dir() / "qemu-mps2-an386")
    with pytest.raises(McugradError, match=text):
        parse_board(path)


def test_the_robot_suite_says_hello_in_our_protocol() -> None:
    nonce = 0x52454E44
    hello = frame.encode(frame.Frame(Command.HELLO, 0, nonce.to_bytes(4, "little") + PROTOCOL.to_bytes(2, "little")))
    written = re.search(r"^@\{HELLO\}((?:\s+(?:\.\.\.|0x[0-9A-F]{2}))+)", boot_suite(), re.M)
    assert written is not None
    assert bytes(int(b, 16) for b in re.findall(r"0x([0-9A-F]{2})", written[1])) == b"\0" + hello


def test_the_robot_suite_has_every_board() -> None:
    rows = re.findall(r"Boots And Answers +(\S+) +(\S+) +(\S+)", boot_suite())
    assert sorted(rows) == sorted((name, board.renode_uart, board.image) for name, board in BOARDS.items())
    trained = re.findall(r"Trains As The Reference Does +(\S+)", boot_suite())
    assert sorted(trained) == sorted(BOARDS)


def boot_suite() -> str:
    return (Path(__file__).parent / "boards.robot").read_text(encoding="utf-8")


def robot(output: Path, *arguments: str) -> str:
    """Run Robot Framework on our suites with a stand-in for Renode's keywords; returns what went wrong."""
    pytest.importorskip("robot", reason="robotframework is not installed: pip install mcugrad[test]")
    assert ROBOTS
    keywords = ("--prerunmodifier", str(Path(__file__).parent / "robot_keywords.py"), "--outputdir", str(output))
    done = subprocess.run(
        [sys.executable, "-m", "robot", *keywords, *arguments, *map(str, ROBOTS)], capture_output=True, text=True, check=False
    )
    return done.stderr if done.returncode == 0 else done.stdout + done.stderr


def test_the_robot_suites_are_well_formed(tmp_path: Path) -> None:
    assert robot(tmp_path, "--dryrun") == ""


def test_named_arguments_of_renode_s_keywords_exist() -> None:
    """Robot Framework takes word=… for text where there is no such argument."""
    for name in ("Create Terminal Tester", "Wait For Bytes On Uart", "Start Emulation"):
        known = inspect.signature(getattr(renode_keywords, name.lower().replace(" ", "_"))).parameters
        calls = re.findall(rf"^ +(?:\S+= +)?{name}(.*)$", boot_suite(), re.M)
        assert calls
        assert {word for call in calls for word in re.findall(r"(\w+)=", call)} <= set(known)


@pytest.mark.qemu
@pytest.mark.slow
def test_the_robot_suite_trains(fake_renode: FakeRenode) -> None:
    assert robot(fake_renode.folder, "--variable", f"PYTHON:{sys.executable}", "--test", "MPS2 AN386 Trains") == ""
    assert fake_renode.started()["arguments"], "a session was run"
