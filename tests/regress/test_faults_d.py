"""Faults of section D, build and flash: what the runtime needs to compile and to link. Flashing itself: host/test_flash.py."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from e2e.builds import cmake_build
from mcugrad import __version__
from mcugrad.board import find_board
from mcugrad.paths import firmware_dir, root
from mcugrad.plan.opsdef import kinds

FLAGS = ("-std=c11", "-Wall", "-Wextra", "-Wconversion", "-Werror", "-ffp-contract=off", "-fno-strict-aliasing")
INCLUDES = (f"-I{firmware_dir() / 'include'}", f"-I{firmware_dir() / 'core'}", f"-I{firmware_dir() / 'kernels'}")
CROSS = f"-DCMAKE_TOOLCHAIN_FILE={root() / 'cmake' / 'arm-none-eabi.cmake'}"

CMSIS_HEADERS = ("arm_math.h", "arm_nnfunctions.h", "arm_nnsupportfunctions.h", "cmsis_compiler.h", "cmsis_gcc.h", "core_cm4.h")
CMSIS_MACROS = "\n".join(
    f"#define {name} {value}"
    for name, value in {
        **{
            "__I": "volatile const",
            "__O": "volatile",
            "__IO": "volatile",
            "__ASM": "__asm",
            "__INLINE": "inline",
            "UNUSED(x)": "((void)(x))",
        },
        **{"__STATIC_FORCEINLINE": "static inline", "__STATIC_INLINE": "static inline", "__WEAK": "__attribute__((weak))", "PI": "3.14f"},
        **{
            "__SSAT(x, n)": "(x)",
            "__SMLAD(a, b, c)": "(c)",
            "MAX(a, b)": "((a) > (b) ? (a) : (b))",
            "MIN(a, b)": "((a) < (b) ? (a) : (b))",
        },
    }.items()
)


def symbols(tool: str, *arguments: str) -> set[str]:
    listing = subprocess.run([tool, *arguments], capture_output=True, text=True, check=True).stdout
    return {line.split()[-1] for line in listing.splitlines() if re.search(r" [A-Za-z] \w", line)}


@pytest.fixture(scope="module")
def cmsis(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two generations of CMSIS headers, as far as they can get into the way: names, include guards, macros."""
    folders = tmp_path_factory.mktemp("cmsis5"), tmp_path_factory.mktemp("cmsis6")
    for n, folder in enumerate(folders, start=5):
        for header in CMSIS_HEADERS:
            guard = f"_{header.upper().replace('.', '_')}"
            text = f"#ifndef {guard}\n#define {guard}\n#define TAKEN_{n} 1\n{CMSIS_MACROS}\n#endif\n"
            (folder / header).write_text(text, encoding="utf-8")
    return folders


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("first", ["mcugrad.h", "arm_math.h"])
def test_d67_an_application_may_include_cmsis_before_and_behind(cmsis: tuple[Path, Path], order: tuple[int, int], first: str) -> None:
    headers = (first, *({"mcugrad.h", "arm_math.h"} - {first}), "mcugrad_port.h", "cmsis_gcc.h", "plan.h")
    source = "".join(f'#include "{header}"\n' for header in headers) + "int x = sizeof(struct mg_ctx);\n"
    paths = [f"-I{cmsis[i]}" for i in order]
    done = subprocess.run(
        ["cc", *FLAGS, *paths, *INCLUDES, "-fsyntax-only", "-x", "c", "-"], input=source, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_d67_no_source_includes_what_is_not_ours_or_the_language_s() -> None:
    allowed = {"float.h", "stdbool.h", "stddef.h", "stdint.h", "string.h"}
    for file in (f for folder in ("core", "kernels", "link", "include") for f in (firmware_dir() / folder).glob("*.[ch]")):
        text = file.read_text(encoding="utf-8")
        assert set(re.findall(r"#include <(.+?)>", text)) <= allowed, file
        ours = set(re.findall(r'#include "(.+?)"', text)) - {"mg_ops_gen.h", "ops.def", "../ops.def"}
        assert all(list(firmware_dir().rglob(Path(name).name)) for name in ours), file


@pytest.mark.qemu
def test_d67_the_library_gives_and_takes_no_foreign_name() -> None:
    folder = find_board("nucleo-f446re").build().elf.parent
    archive = str(folder / "libmcugrad.a")
    assert {name for name in symbols("arm-none-eabi-nm", "-g", "--defined-only", archive) if not name.startswith("mg_")} == set()
    wanted = {name for name in symbols("arm-none-eabi-nm", "-g", "--undefined-only", archive) if not name.startswith("mg_")}
    assert {name for name in wanted if not name.startswith("__aeabi_")} <= {"memcmp", "memcpy", "memmove", "memset"}
    objects = [str(o) for o in (folder / "CMakeFiles" / "trainer.dir").rglob("*.obj")]
    given = symbols("arm-none-eabi-nm", "-g", "--defined-only", *objects)
    assert given and {name for name in given if not name.startswith(("mg_", "board_"))} == {"main", "reset_handler"}


@pytest.mark.qemu
@pytest.mark.parametrize("board", ["qemu-mps2-an385", "nucleo-f446re", "stm32f746g-disco", "qemu-mps2-an505", "qemu-mps3-an547"])
def test_d68_every_kernel_links_on_every_core(board: str) -> None:
    found = symbols("arm-none-eabi-nm", str(find_board(board).build().elf))
    assert {f"mg_{name}" for name in kinds()} <= found


@pytest.mark.qemu
def test_d68_every_kernel_links_on_a_cortex_m0plus(tmp_path: Path) -> None:
    folder = root() / "build" / "cortex-m0plus"
    cmake_build(folder, "mcugrad", CROSS, "-DCMAKE_C_FLAGS=-mcpu=cortex-m0plus -mthumb")
    main, image = tmp_path / "main.c", tmp_path / "all.elf"
    main.write_text("int main(void) { return 0; }\n")
    whole = ("-Wl,--whole-archive", str(folder / "libmcugrad.a"), "-Wl,--no-whole-archive", "--specs=nano.specs", "--specs=nosys.specs")
    linked = subprocess.run(
        ["arm-none-eabi-gcc", "-mcpu=cortex-m0plus", "-mthumb", str(main), *whole, "-o", str(image)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert linked.returncode == 0, linked.stderr
    assert {f"mg_{name}" for name in kinds()} <= symbols("arm-none-eabi-nm", str(image))


@pytest.mark.slow
@pytest.mark.parametrize("target", ["aarch64-none-elf", "riscv32-none-elf"])
def test_d68_every_kernel_compiles_for_other_machines(tmp_path: Path, target: str) -> None:
    headers = Path("/usr/include/newlib")
    if shutil.which("clang") is None or not headers.is_dir():
        pytest.skip("needs clang and newlib's headers")
    generated = root() / "build" / "cortex-m0plus" / "generated"
    cmake_build(generated.parent, "mcugrad", CROSS, "-DCMAKE_C_FLAGS=-mcpu=cortex-m0plus -mthumb")
    for source in sorted(p for folder in ("core", "kernels") for p in (firmware_dir() / folder).glob("*.c")):
        command = ["clang", f"--target={target}", "-isystem", str(headers), *FLAGS, *INCLUDES, f"-I{generated}", "-c", str(source)]
        done = subprocess.run([*command, "-o", str(tmp_path / "x.o")], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


@pytest.mark.qemu
def test_d72_build_says_what_fills_each_region() -> None:
    for name in ("nucleo-f446re", "nrf52840-dk"):
        board = find_board(name)
        firmware = board.build()
        flash, ram = firmware.regions
        assert (flash.name, flash.used_bytes, flash.total_bytes) == ("FLASH", firmware.flash_bytes, board.firmware_bytes)
        assert (ram.name, ram.used_bytes) == ("RAM", firmware.static_ram_bytes + board.stack_bytes)
        assert ram.total_bytes == board.ram_bytes and 0 < ram.percent < 100


def test_d79_one_version_for_the_package_and_the_firmware() -> None:
    text = (root() / "CMakeLists.txt").read_text(encoding="utf-8")
    found = re.search(r"project\(mcugrad VERSION (\S+)", text)
    assert found is not None and found[1] == __version__.partition("+")[0]


@pytest.mark.parametrize("flag", ["-ffast-math", "-Ofast", "-funsafe-math-optimizations", "-ffinite-math-only", "-freciprocal-math"])
def test_d81_fast_math_does_not_compile(flag: str) -> None:
    source = firmware_dir() / "kernels" / "fixed.c"
    good = ["gcc", *FLAGS, *INCLUDES, "-fsyntax-only", str(source)]
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    assert subprocess.run(good, capture_output=True, check=False).returncode == 0
    done = subprocess.run([*good, flag], capture_output=True, text=True, check=False)
    assert done.returncode != 0 and "build without -ffast-math" in done.stderr
