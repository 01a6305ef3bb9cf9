"""The board map of the pytest plugin: read, checked, and each mistake named with the entry, the key and what it must be."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from mcugrad.errors import UsageError
from mcugrad.hil import board_map
from mcugrad.hil.board_map import Place, place_of, read_map
from mcugrad.link.transport import Lines

GOOD = """\
boards:
  - name: desk
    board: nucleo-f446re
    port: /dev/ttyACM0
    baud: 230400
    probe: 066BFF303435554157
    flash: true
    power: uhubctl -l 1-1 -a cycle
  - name: rack
    board: stm32f746g-disco
    port: /dev/ttyACM1
    reset: false
  - {name: emulated, board: qemu-mps2-an386}
"""

PLACES = {
    "desk": Place(
        "desk",
        "nucleo-f446re",
        "/dev/ttyACM0",
        230400,
        probe="066BFF303435554157",
        flash=True,
        power=("uhubctl", "-l", "1-1", "-a", "cycle"),
    ),
    "rack": Place("rack", "stm32f746g-disco", "/dev/ttyACM1", lines=Lines.LEAVE),
    "emulated": Place("emulated", "qemu-mps2-an386"),
}


def written(tmp_path: Path, text: str, name: str = "map.yaml") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_a_map_is_read(tmp_path: Path) -> None:
    assert read_map(written(tmp_path, GOOD)) == PLACES
    assert [p.spec for p in PLACES.values()] == ["serial:/dev/ttyACM0:230400", "serial:/dev/ttyACM1:no-reset", "qemu-mps2-an386"]


def test_the_map_in_the_documentation_is_a_map(tmp_path: Path) -> None:
    assert board_map.__doc__ is not None
    text = board_map.__doc__.partition("    boards:")[2].partition("\n\n")[0]
    (place,) = read_map(written(tmp_path, "    boards:" + text)).values()
    assert (place.name, place.flash, place.lines, place.power[0]) == ("desk", True, Lines.LEAVE, "uhubctl")


def test_json_needs_no_yaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    entries = [{"name": "rack", "board": "stm32f746g-disco", "port": "/dev/ttyACM1", "reset": False}]
    path = written(tmp_path, json.dumps({"boards": entries}), "map.json")
    assert read_map(path) == {"rack": PLACES["rack"]}
    with pytest.raises(UsageError, match=r"needs PyYAML: pip install \"mcugrad\[hil\]\", or write the same as a .json file"):
        read_map(written(tmp_path, GOOD))


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("boards:", "board:", "a board map has one key, boards"),
        ("boards:", "version: 2\nboards:", "a board map has one key, boards"),
        ("name: desk", "name: rack", "two entries have the name rack: give each board its own name"),
        ("ttyACM1", "ttyACM0", "two entries have the port /dev/ttyACM0"),
        ("    reset: false", "    probe: 066BFF303435554157", "two entries have the probe 066BFF303435554157"),
        ("  - name: rack\n", "", "the key board stands twice in one table: begin each board with its own -"),
        ("name: desk", "name: my desk", r"boards\[0\] \(my desk\): name must be one word, it is 'my desk'"),
        ("name: desk", "name: 7", r"boards\[0\]: name is 7, which is read as a number: put it into quotes"),
        ("probe: 066BFF303435554157", "probe: 0667", r"boards\[0\] \(desk\): probe is 439, which is read as a number: put it into quotes"),
        ("    board: nucleo-f446re\n", "", r"boards\[0\] \(desk\): board must be a text, it is missing"),
        ("nucleo-f446re", "nucleo-f446er", r"boards\[0\] \(desk\): there is no board 'nucleo-f446er': did you mean nucleo-f446re\?"),
        ("    port: /dev/ttyACM1\n", "", r"boards\[1\] \(rack\): port must be a text, it is missing"),
        ("flash: true", "flash: often", r"flash must be true or false, it is 'often'"),
        ("baud: 230400", "baud: -1", r"baud must be an integer above 0, it is -1"),
        ("baud: 230400", "baud: true", r"baud must be an integer above 0, it is True"),
        ("reset: false", "reset: 0", r"reset must be true or false, it is 0"),
        ("power: uhubctl -l 1-1 -a cycle", "power: [1, 2]", r"power must be a command, as one text or as a list of words"),
        ("power: uhubctl -l 1-1 -a cycle", "power: uhubctl 'x", r"power .* is no command: No closing quotation"),
        ("probe: 066", "prob: 066", r"boards\[0\] \(desk\): there is no key 'prob': did you mean probe\?"),
        ("board: qemu-mps2-an386", "board: host, port: /dev/x", r"boards\[2\] \(emulated\): host runs on this machine and has no port"),
        ("  - {name: emulated, board: qemu-mps2-an386}", "  - emulated", r"boards\[2\] is 'emulated', not a table of name, board"),
        ("boards:", "boards: [", "is not YAML"),
        ("name: desk", "name: !!python/object/apply:os.getcwd []", "is not YAML"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, old: str, new: str, text: str) -> None:
    assert old in GOOD
    with pytest.raises(UsageError, match=text) as caught:
        read_map(written(tmp_path, GOOD.replace(old, new, 1)))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [("{", "is not JSON"), ('{"boards": []}', "one entry or more"), ('{"boards": 1, "boards": 2}', "the key boards stands twice")],
)
def test_a_mistake_in_json_is_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        read_map(written(tmp_path, text, "map.json"))


def test_a_map_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read as text: No such file"):
        read_map(tmp_path / "none.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="cannot be read as text"):
        read_map(tmp_path / "binary.yaml")


def test_words_without_a_map() -> None:
    assert place_of("host") == Place("host", "host")
    assert place_of("serial:/dev/ttyX").spec == "serial:/dev/ttyX"
    assert place_of("serial:/dev/ttyX:9600:no-reset").spec == "serial:/dev/ttyX:9600:no-reset"
    with pytest.raises(UsageError, match="nucleo-f446re is hardware, and no map says where"):
        place_of("nucleo-f446re")
    with pytest.raises(UsageError, match="did you mean host"):
        place_of("hots")
