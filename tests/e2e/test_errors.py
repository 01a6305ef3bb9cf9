"""Whatever is wrong: the right exit code and one line that names the value, the limit and the next move; never a traceback."""

from __future__ import annotations

import errno
import importlib
import json
import shutil
import struct
import tempfile
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest

from e2e.conftest import MODEL, QEMU, Motions
from helpers.cli import Done, finished, mcugrad, started
from helpers.motions import CLASSES, motions
from helpers.tflite_builder import ModelBuilder
from mcugrad import nearest
from mcugrad.board import find_board, open_board, table
from mcugrad.errors import DeviceError, FitError
from mcugrad.graph import Quant
from mcugrad.link import Session
from mcugrad.pipeline import compile_model
from mcugrad.plan.opsdef import ops_hash

Command = Callable[..., Done]
train_command = importlib.import_module("mcugrad.cli.train")  # the package has the command under this name


@pytest.fixture
def train(motion_files: Motions, tmp_path: Path) -> Command:
    """train(…): a training run on the host board that would go well; further options come last and win."""

    def run(*more: str | Path | float, model: Path = MODEL) -> Done:
        files = ("--data", motion_files.train, "--out", tmp_path / "trained.tflite")
        return mcugrad("train", model, *files, "--board", "host", "--classes", CLASSES, "--epochs", 1, *more)

    return run


# ---- the model ---------------------------------------------------------------------------------------------------------


def uint8_model() -> bytes:
    """One fully connected layer on uint8 activations, as TensorFlow 1 quantized."""
    m = ModelBuilder()
    x = m.tensor("x", (1, 4), "uint8", quant=Quant((0.5,), 128))
    y = m.linear(x, np.ones((3, 4), np.int8), (0.1,), np.zeros(3, np.int32), Quant((0.5,), 0))
    return m.finish([x], [y])


@pytest.mark.parametrize("command", ["inspect", "plan", "train"])
@pytest.mark.parametrize(
    ("content", "texts"),
    [
        (b"", ["0 bytes"]),
        (bytes(64), ["not a .tflite file", "give a .tflite model"]),
        (b"\x18\0\0\0TFL3", ["bad.tflite"]),
        (uint8_model(), ["uint8", "int8"]),
    ],
    ids=["empty", "zeros", "stub", "uint8"],
)
def test_a_model_that_is_none(train: Command, tmp_path: Path, command: str, content: bytes, texts: list[str]) -> None:
    path = tmp_path / "bad.tflite"
    path.write_bytes(content)
    done = {
        "inspect": lambda: mcugrad("inspect", path),
        "plan": lambda: mcugrad("plan", path, "--board", "host"),
        "train": lambda: train(model=path),
    }[command]()
    done.fails(3, "bad.tflite", *texts)


def test_a_model_cut_anywhere(tmp_path: Path) -> None:
    """Cut at every 100th byte. What is left is never the whole model: the end of this file is used."""
    whole = MODEL.read_bytes()
    path = tmp_path / "cut.tflite"
    for size in range(0, len(whole), 100):
        path.write_bytes(whole[:size])
        mcugrad("plan", path, "--board", "host").fails(3, "cut.tflite")


def test_a_model_that_is_not_there(train: Command, tmp_path: Path) -> None:
    train(model=tmp_path / "none.tflite").fails(3, "none.tflite")
    train(model=tmp_path).fails(3, str(tmp_path))


# ---- the data ----------------------------------------------------------------------------------------------------------


def npz(tmp_path: Path, **arrays: object) -> Path:
    x, y = motions(21, 1)
    np.savez(tmp_path / "odd.npz", **{"x": x, "y": y, **arrays})  # type: ignore[arg-type]
    return tmp_path / "odd.npz"


def with_nan() -> np.ndarray:
    x, _ = motions(21, 1)
    x[3, 5, 1] = np.nan
    return x


@pytest.mark.parametrize(
    ("arrays", "texts"),
    [
        ({"x": with_nan()}, ["1 values that are NaN or infinite", r"\(3, 5, 1\)", "clean the data"]),
        ({"y": np.arange(21) % 12}, ["label 7", "7 classes", "--classes"]),
        ({"y": -(np.arange(21) % 2)}, ["label -1", "0 to 6"]),
        ({"x": np.zeros((21, 64, 6), np.float32)}, [r"\(64, 6\)", r"\(128, 1, 6\)", "reshape"]),
        ({"x": np.zeros((21, 128, 6), np.int16)}, ["int16", "float, uint8 or int8", "astype"]),
        ({"y": np.zeros(21)}, ["float64", "integer class numbers", "astype"]),
        ({"y": np.zeros((21, 7), np.int64)}, [r"\(21, 7\)", "argmax"]),
        ({"y": np.zeros(20, np.int64)}, ["21 samples", "20 labels"]),
        ({"x": np.zeros((0, 128, 6), np.float32), "y": np.zeros(0, np.int64)}, ["no samples"]),
    ],
)
def test_data_that_does_not_fit(train: Command, tmp_path: Path, arrays: dict[str, np.ndarray], texts: list[str]) -> None:
    train("--data", npz(tmp_path, **arrays)).fails(4, "odd.npz|label", *texts)
    train("--eval", npz(tmp_path, **arrays)).fails(4, "odd.npz|label", *texts)
    mcugrad("eval", MODEL, "--data", npz(tmp_path, **arrays), "--board", "host").fails(4, "odd.npz|label", *texts)


def test_twelve_labels_for_ten_classes(train: Command, tmp_path: Path) -> None:
    done = train("--data", npz(tmp_path, y=np.arange(21) % 12), "--classes", 10)
    done.fails(4, "sample 10 has label 10", "10 classes", r"2 of 21 labels", "--classes")


@pytest.mark.parametrize("content", [None, b"", b"PK\3\4 no zip", b"text"])
def test_data_that_is_no_file_of_arrays(train: Command, tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "odd.npz"
    if content is not None:
        path.write_bytes(content)
    train("--data", path).fails(4, "odd.npz", "check the path" if content is None else "numpy.savez")


def test_the_device_refuses_a_label_by_itself() -> None:
    """The same fault behind the host's check."""
    with open_board("host") as (_, line):
        session = Session(line)
        session.hello()
        session.load_plan(compile_model(MODEL, "head", 10).plan)
        session.sample(np.zeros(768, np.int8))
        with pytest.raises(DeviceError, match=r"MG_ERR_LABEL: label 11, the model has 10 classes") as e:
            session.train(11, 0.01, 0.1)
    assert e.value.exit_code == 6


# ---- options -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "texts"),
    [
        (("--lr", "nan"), ["--lr nan", "1e-30 to 1e", "0.01"]),
        (("--lr", "0"), ["--lr 0", "1e-30"]),
        (("--lr", "-0.1"), ["--lr -0.1"]),
        (("--lr", "inf"), ["--lr inf"]),
        (("--lr", "1e39"), [r"--lr 1e\+39"]),
        (("--lr", "1e-46"), ["--lr 1e-46"]),
        (("--epochs", "0"), ["--epochs 0", "at least 1"]),
        (("--epochs", "-3"), ["--epochs -3", "at least 1"]),
        (("--skip", "1"), ["--skip 1", "below 1"]),
        (("--skip", "nan"), ["--skip nan"]),
        (("--train", "weights:conv_44"), ["conv_44", "nearest: conv_4"]),
        (("--train", "bias:dwcov_3"), ["dwcov_3", "nearest: dwconv_3"]),
        (("--train", "weights:99"), ["99", "0 to 9"]),
        (("--train", "bias:11"), ["bias:11", "bias:1 to bias:10"]),
        (("--train", "weights:conv_3:3/2"), ["3/2", r"\(0, 1\]", "1/4"]),
        (("--train", "weights:conv_3:0"), ["'0'", r"\(0, 1\]"]),
        (("--train", "weights:conv_3:1/0"), ["1/0", r"\(0, 1\]"]),
        (("--train", "weights:conv_3:half"), ["half", r"\(0, 1\]"]),
        (("--train", "tail"), ["'tail' is not understood", "head . bias:K"]),
        (("--train", ""), ["'' is not understood"]),
        (("--train", "none.json"), ["none.json", "No such file"]),
        (("--board", "hots"), ["'hots'", "did you mean host"]),
        (("--board", "qemu-mps2-an368"), ["did you mean qemu-mps2-an386"]),
        (("--board", "serial:"), ["names no serial port", "serial:/dev/ttyACM0"]),
        (("--out", "trained.bin"), ["trained.bin", "--out trained.tflite"]),
        (("--out", ""), ["--out trained.tflite"]),
        (("--out", "/"), ["--out /trained.tflite"]),
    ],
)
def test_an_option_that_cannot_be_meant(train: Command, options: tuple[str, str], texts: list[str]) -> None:
    train(*options).fails(2, *texts)


@pytest.mark.parametrize(
    ("content", "text"),
    [("{", "not JSON"), ("[]", "expected an object"), ('{"wieghts": {}}', "expected an object"), ("{}", "trains nothing")],
)
def test_a_scheme_file_that_is_none(train: Command, tmp_path: Path, content: str, text: str) -> None:
    path = tmp_path / "scheme.json"
    path.write_text(content, encoding="utf-8")
    train("--train", path).fails(2, "scheme.json", text)


def test_a_port_that_is_not_there(train: Command) -> None:
    train("--board", "serial:/dev/none").fails(69, "there is no port /dev/none", "mcugrad ports")


@pytest.mark.parametrize("words", [("train",), ("train", MODEL, "--epochs", "many"), ("no-such-command",), ("plan", MODEL, "--colour")])
def test_click_s_own_errors_have_the_same_code(words: tuple[str | Path, ...]) -> None:
    done = mcugrad(*words)
    assert done.code == 2 and "Traceback" not in done.err and "Error: " in done.err
    error = mcugrad(*words, "--json").object["error"]
    assert error["code"] == 2 and error["text"] and error["hint"]


# ---- where results go: known before training starts ----------------------------------------------------------------------


@pytest.fixture
def no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training that begins fails the test."""

    def begin(*_: object) -> NoReturn:
        pytest.fail("training began")

    monkeypatch.setattr(train_command, "train_on_board", begin)


@pytest.mark.usefixtures("no_training")
@pytest.mark.parametrize("name", ["folder.tflite", "taken/x.tflite", "blocked.tflite"])
def test_out_that_cannot_be_written(train: Command, tmp_path: Path, name: str) -> None:
    (tmp_path / "folder.tflite").mkdir()
    (tmp_path / "taken").write_text("a file")
    (tmp_path / "blocked.ckpt").mkdir()
    train("--out", tmp_path / name).fails(2, f"--out {tmp_path / name}", "choose another")


@pytest.mark.usefixtures("no_training")
def test_out_in_a_folder_without_permission(train: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests may run as root, who may write everywhere: the system's refusal is played."""

    def refuse(**_: object) -> NoReturn:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    train("--out", tmp_path / "x.tflite").fails(2, f"cannot write into {tmp_path}: Permission denied", "choose another folder")


@pytest.mark.usefixtures("no_training")
def test_out_must_not_be_the_model(train: Command, tmp_path: Path) -> None:
    copy = tmp_path / "model.tflite"
    copy.write_bytes(MODEL.read_bytes())
    train("--out", tmp_path / "." / "model.tflite", model=copy).fails(2, "model.tflite is the model that is trained", "choose another")
    assert copy.read_bytes() == MODEL.read_bytes()


@pytest.mark.parametrize("target", ["folder", "taken/x"])
def test_plan_and_export_out(train: Command, tmp_path: Path, target: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "taken").write_text("a file")
    assert train().code == 0
    mcugrad("plan", MODEL, "--board", "host", "--out", tmp_path / target).fails(2, str(tmp_path / target))
    checkpoint = ("--checkpoint", tmp_path / "trained.ckpt")
    mcugrad("export", MODEL, *checkpoint, "--out", tmp_path / target).fails(2, str(tmp_path / target))
    assert not list(tmp_path.glob("**/*.part"))


def test_build_out(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    mcugrad("build", "--board", "host", "--out", tmp_path / "taken").fails(2, "taken", "check the path")


# ---- plan and board ----------------------------------------------------------------------------------------------------


def test_a_plan_for_another_ops_def(monkeypatch: pytest.MonkeyPatch) -> None:
    """Device and host: the host's check is in tests/regress/test_faults_f.py, so here it goes past that."""
    plan = bytearray(compile_model(MODEL, "head").plan)
    struct.pack_into("<I", plan, 8, ops_hash() ^ 1)
    struct.pack_into("<I", plan, 16, zlib.crc32(plan[20:]))
    monkeypatch.setattr("mcugrad.link.session.require_one_build", lambda caps, plan: None)
    with open_board("host") as (_, line):
        session = Session(line)
        session.hello()
        with pytest.raises(DeviceError) as e:
            session.load_plan(bytes(plan))
    assert e.value.exit_code == 6
    for text in ("MG_ERR_OPS", f"0x{ops_hash() ^ 1:08x}", f"0x{ops_hash():08x}", "build and flash the firmware again"):
        assert text in str(e.value)


@pytest.fixture
def small_board(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """small_board(ram_bytes=…): the host board declares other sizes than it has."""

    def shrink(**sizes: int) -> None:
        boards = {**table.load_boards(), "host": replace(find_board("host"), **sizes)}
        monkeypatch.setattr(table, "load_boards", lambda: boards)

    return shrink


def test_a_board_with_too_little_ram(train: Command, small_board: Callable[..., None]) -> None:
    small_board(ram_bytes=20_000)
    needs = r"plan needs \d\d,\d\d\d bytes of RAM \(arena [\d,]+, state [\d,]+, io \d\d, "
    train().fails(8, needs, "board host has 20,000", r"even --train head --rounding stochastic needs [\d,]+ bytes; take another board")


def test_a_board_with_too_little_flash(train: Command, small_board: Callable[..., None]) -> None:
    small_board(flash_bytes=12_000, firmware_bytes=1_000)
    train().fails(8, r"plan needs [\d,]+ bytes of flash", "board host has 12,000", "smaller model")


def test_a_plan_larger_than_the_slot() -> None:
    with open_board("host") as (_, line):
        session = Session(line)
        slot = session.hello().slot_bytes
        with pytest.raises(FitError, match=rf"the plan has {slot + 16:,} bytes, the plan slot of host has {slot:,}: pick a smaller model"):
            session.load_plan(bytes(slot + 16))


def test_a_plan_that_needs_more_ram_than_the_device_has() -> None:
    """The device refuses it too, with its own numbers."""
    plan = bytearray(compile_model(MODEL, "head").plan)
    struct.pack_into("<I", plan, 24, 1 << 21)
    struct.pack_into("<I", plan, 16, zlib.crc32(plan[20:]))
    with open_board("host") as (_, line):
        session = Session(line)
        pool = session.hello().pool_bytes
        with pytest.raises(FitError, match=rf"MG_ERR_NOMEM: the plan needs 2,[\d,]+ bytes of RAM, the board has {pool:,} to give"):
            session.load_plan(bytes(plan))


# ---- missing tools -----------------------------------------------------------------------------------------------------


@pytest.fixture
def tools_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """tools_without(name): a PATH with all tools but one."""

    def forget(name: str) -> None:
        folder = tmp_path / "bin"
        folder.mkdir()
        for tool in {"cmake", "ninja", "cc", "size", "arm-none-eabi-gcc", "arm-none-eabi-size", "qemu-system-arm"} - {name}:
            if (found := shutil.which(tool)) is not None:
                (folder / tool).symlink_to(found)
        monkeypatch.setenv("PATH", str(folder))

    return forget


@pytest.mark.qemu
def test_qemu_is_missing(train: Command, tools_without: Callable[[str], None]) -> None:
    tools_without("qemu-system-arm")
    train("--board", QEMU).fails(69, "qemu-system-arm is not on PATH", "apt install qemu-system-arm")
    done = mcugrad("doctor")
    assert done.code == 69 and "apt install qemu-system-arm" in done.err


@pytest.mark.parametrize(
    ("tool", "board", "package"),
    [
        ("cmake", "host", "cmake"),
        ("ninja", "host", "ninja-build"),
        ("cc", "host", "gcc"),
        ("cmake", QEMU, "cmake"),
        ("arm-none-eabi-gcc", QEMU, "gcc-arm-none-eabi"),
    ],
)
def test_a_build_tool_is_missing(train: Command, tools_without: Callable[[str], None], tool: str, board: str, package: str) -> None:
    tools_without(tool)
    train("--board", board).fails(69, f"{tool} is not on PATH|qemu-system-arm is not on PATH", f"apt install {package}|apt install qemu")
    mcugrad("build", "--board", board).fails(69, f"{tool} is not on PATH", f"apt install {package}")


def test_a_plan_can_be_made_without_a_compiler(tools_without: Callable[[str], None]) -> None:
    tools_without("cmake")
    done = mcugrad("plan", MODEL, "--board", "host", "--json")
    assert done.result["ram"]["runtime"] == 0
    assert any("not counted" in note and "cmake" in note for note in done.result["notes"])


# ---- programs read errors too --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "code", "name"),
    [
        (("--epochs", "0"), 2, "usage"),
        (("--train", "tail"), 2, "usage"),
        (("--board", "hots"), 2, "usage"),
        (("--data", "none.npz"), 4, "data"),
        (("--board", "serial:/dev/none"), 69, "unavailable"),
    ],
)
def test_json_has_the_same_error(train: Command, options: tuple[str, str], code: int, name: str) -> None:
    done = train(*options, "--json")
    found = done.object
    assert done.code == code and done.err == ""
    assert found["schema"] == "mcugrad.train/1" and found["status"] == "error"
    assert set(found["error"]) == {"code", "name", "text", "hint"}
    assert (found["error"]["code"], found["error"]["name"]) == (code, name)
    assert found["error"]["text"] and found["error"]["hint"]


def test_json_of_a_damaged_model(tmp_path: Path) -> None:
    (tmp_path / "bad.tflite").write_bytes(bytes(64))
    for command in ("inspect", "plan"):
        error = mcugrad(command, tmp_path / "bad.tflite", "--json").object["error"]
        assert (error["code"], error["name"]) == (3, "model") and error["hint"]


# ---- defects -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "defect", [RuntimeError("wires\ncrossed"), KeyError("abs"), NotImplementedError(), AssertionError(), MemoryError()]
)
def test_a_defect_is_one_line_too(train: Command, monkeypatch: pytest.MonkeyPatch, defect: Exception) -> None:
    def fail(*_: object, **__: object) -> NoReturn:
        raise defect

    monkeypatch.setattr(nearest, "compile_model", fail)
    train().fails(1, f"internal error, {type(defect).__name__}", "MCUGRAD_DEBUG")
    error = train("--json").object["error"]
    assert (error["code"], error["name"]) == (1, "internal")


def test_a_defect_shows_its_traceback_where_asked(train: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> NoReturn:
        raise RuntimeError("wires crossed")

    monkeypatch.setattr(nearest, "compile_model", fail)
    monkeypatch.setenv("MCUGRAD_DEBUG", "1")
    with pytest.raises(RuntimeError, match="wires crossed"):
        train()


def test_a_real_process_ends_the_same_way(tmp_path: Path) -> None:
    done = finished(started("inspect", tmp_path / "none.tflite"))
    done.fails(3, "none.tflite")
    done = finished(started("inspect", tmp_path / "none.tflite", "--json"))
    assert done.code == 3 and json.loads(done.out)["error"]["name"] == "model" and done.err == ""
