"""The watch data set of the demo: recordings -> windows -> the three files that `mcugrad train` reads.

Ten people did seven shoulder exercises with a smart watch on the left and on the right wrist: 140 recordings at 50 Hz of
acceleration (g) and angular rate (rad/s). The package seglearn ships them; it is read as a file, never imported (its import
needs pandas, which it does not declare).

    python examples/watch/data.py --out DIR      writes base.npz, new_wearer.npz and held_out.npz
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import io
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mcugrad.errors import DataError, McugradError, UnavailableError

WINDOW = 128
CHANNELS = ("ax", "ay", "az", "wx", "wy", "wz")
FULL_SCALE = np.array([4.0, 2.0, 2.0, 4.0, 8.0, 4.0], np.float32)
"""What 1.0 means, per channel, in g and rad/s: fixed powers of two, so a sensor driver can shift. The model's input saturates there."""

NEW_WEARER = 10
"""The person who is not in the base model: the highest subject number, fixed before any accuracy was known."""

BLOCK = 2
"""Windows in a block of the wearer's split: 5.1 seconds."""

ORDER_SEED = 0
SHA256 = "eb122f23cdf06ef6bd6c6c5312958ec5cf9d038e2e6d457b8081662c75a42537"

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """One exercise of one person on one side: x (T,6) float32 in units of FULL_SCALE, in time order."""

    x: Floats
    label: int
    subject: int

    @property
    def windows(self) -> Floats:
        """(T // 128, 128, 6): no overlap, the rest dropped."""
        count = len(self.x) // WINDOW
        return self.x[: count * WINDOW].reshape(count, WINDOW, len(CHANNELS))


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """x (N,128,1,6) float32 as the model takes it, y (N,) int64."""

    x: Floats
    y: Ints


def dataset_path() -> Path:
    """The data file of the installed seglearn, found without running any of its code. UnavailableError when it is absent."""
    spec = importlib.util.find_spec("seglearn")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / "data" / "watch_dataset.npy"
        if path.is_file():
            return path
    raise UnavailableError("the watch recordings of the package seglearn 1.2.5 are not installed", 'run: pip install "mcugrad[demo]"')


def load_recordings(path: Path | None = None) -> tuple[tuple[Recording, ...], tuple[str, ...]]:
    """All 140 recordings in the order of the file, and the names of the seven classes.

    ``path`` None means the installed seglearn. Raises UnavailableError (nothing there) or DataError (not that file).
    """
    path = path or dataset_path()
    if not path.is_file():
        raise UnavailableError(f"{path} does not exist", 'run: pip install "mcugrad[demo]"')
    content = path.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found != SHA256:
        raise DataError(f"{path} has sha256 {found[:16]}…, expected {SHA256[:16]}…", "run: pip install --force-reinstall seglearn==1.2.5")
    # The file is a pickled dict, and a pickle may run any code when it is read: only the bytes whose digest was just checked are read.
    table = np.load(io.BytesIO(content), allow_pickle=True).item()
    recordings = tuple(
        Recording((np.asarray(x) / FULL_SCALE).astype(np.float32), int(label), int(subject))
        for x, label, subject in zip(table["X"], table["y"], table["subject"], strict=True)
    )
    return recordings, tuple(str(name) for name in table["y_labels"])


def load_windows(path: Path | None = None) -> tuple[Floats, Ints, Ints, tuple[str, ...]]:
    """x (N,128,6) float32 in units of FULL_SCALE, y (N,), subject (N,), class names. Errors: see load_recordings."""
    recordings, classes = load_recordings(path)
    x = np.concatenate([r.windows for r in recordings])
    y = np.concatenate([np.full(len(r.windows), r.label, np.int64) for r in recordings])
    subject = np.concatenate([np.full(len(r.windows), r.subject, np.int64) for r in recordings])
    return x, y, subject, classes


def samples(parts: list[tuple[Floats, int]]) -> Samples:
    """Join (windows, label) pairs and put them in one seeded random order: on the device, batches are single samples."""
    x = np.concatenate([windows for windows, _ in parts])[:, :, None, :]
    y = np.concatenate([np.full(len(windows), label, np.int64) for windows, label in parts])
    order = np.random.default_rng(ORDER_SEED).permutation(len(y))
    return Samples(np.ascontiguousarray(x[order]), y[order])


Halves = tuple[Floats, Floats]


def alternate_blocks(windows: Floats, index: int) -> Halves:
    """(train, test): blocks of BLOCK neighbouring windows go to the two in turn; recordings of odd ``index`` begin with the test."""
    trains = (np.arange(len(windows)) // BLOCK + index) % 2 == 0
    return windows[trains], windows[~trains]


def halves_in_time(windows: Floats, index: int) -> Halves:
    """(train, test): the first and the second half of the recording, which is harder: people tire and change their form."""
    middle = (len(windows) + index % 2) // 2
    return windows[:middle], windows[middle:]


def split(
    recordings: Sequence[Recording], wearer: int = NEW_WEARER, divide: Callable[[Floats, int], Halves] = alternate_blocks
) -> tuple[Samples, Samples, Samples]:
    """(base, new wearer, held out). Base: all windows of everybody else.

    ``divide`` cuts each recording of the wearer in two, so both halves hold every exercise on both sides. Its index counts the
    recordings of one exercise: what an odd length gives to the one half on the first side, it gives to the other on the second.
    """
    base = [(r.windows, r.label) for r in recordings if r.subject != wearer]
    train: list[tuple[Floats, int]] = []
    test: list[tuple[Floats, int]] = []
    for r in recordings:
        if r.subject == wearer:
            first, second = divide(r.windows, sum(label == r.label for _, label in train))
            train.append((first, r.label))
            test.append((second, r.label))
    return samples(base), samples(train), samples(test)


def write_files(out: Path, path: Path | None = None) -> dict[str, int]:
    """Write the three files into ``out`` (made when absent); file name -> number of windows."""
    recordings, classes = load_recordings(path)
    out.mkdir(parents=True, exist_ok=True)
    counts: dict[str, int] = {}
    for name, part in zip(("base.npz", "new_wearer.npz", "held_out.npz"), split(recordings), strict=True):
        np.savez_compressed(out / name, x=part.x, y=part.y, classes=np.array(classes))
        counts[name] = len(part.y)
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description="Cut the watch recordings into the files of the demo.")
    parser.add_argument("--out", type=Path, required=True, help="folder of base.npz, new_wearer.npz and held_out.npz")
    parser.add_argument("--data", type=Path, help="watch_dataset.npy (default: of the installed seglearn)")
    options = parser.parse_args()
    try:
        counts = write_files(options.out, options.data)
    except McugradError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    for name, count in counts.items():
        print(f"{options.out / name}  {count} windows")
    return 0


if __name__ == "__main__":
    sys.exit(main())
