"""Replaces a file as a whole: written beside it and moved into place, so that a reader sees the old or the new one,
and what cannot be written leaves the old one.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


def replace_file(path: Path, data: bytes, mode: int = 0o666, prepare: Callable[[int], None] | None = None) -> None:
    """Put `data` in place of the file `path`, on the disk when this returns. `mode` as of `os.open`; `prepare` gets the
    descriptor of the new file before anything is in it.

    Raises:
        OSError: it cannot be written; nothing has changed.
    """
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    try:
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            if prepare is not None:
                prepare(file.fileno())
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, path)
    except BaseException:
        with suppress(OSError):
            fresh.unlink()
        raise
