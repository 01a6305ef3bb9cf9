"""Writing a model file whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from mcugrad.errors import ModelError


def write_whole(path: Path, data: bytes) -> None:
    """Write beside the target, then rename: a crash leaves the old file or the new one. Raises ModelError."""
    temporary = None
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        raise ModelError(f"cannot write the model {path}: {error.strerror}", "check the folder and its free space") from None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
