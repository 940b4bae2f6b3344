"""The model that ships with dunlin, made on first use. Loads torch only to make it."""

import os
import tempfile
from pathlib import Path

from dunlin.engine.errors import ModelError

PREFIX = "builtin:"
NAMES = ("tiny",)
# Part of the directory's name: a checkpoint made by another version of this code is left alone.
VERSION = 1


def resolve_model(model: str, cache: Path) -> Path:
    """The directory of `model`: itself, or for `builtin:NAME` a checkpoint under `cache`, made if it is not there.

    :raises ModelError: no such built-in model, or the cache cannot be written.
    """
    if not model.startswith(PREFIX):
        return Path(model)
    name = model.removeprefix(PREFIX)
    if name not in NAMES:
        raise ModelError(model, "no such built-in model", f"choose one of {', '.join(PREFIX + each for each in NAMES)}")
    directory = cache / f"builtin-{name}-{VERSION}"
    if not directory.is_dir():
        _make(directory)
    return directory


def _make(directory: Path) -> None:
    """Several processes may do this at once: each makes its own and the first rename wins."""
    from dunlin.engine.checkpoint import init_checkpoint  # loads torch

    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory.parent, ignore_cleanup_errors=True) as scratch:
            made = Path(scratch) / directory.name
            init_checkpoint(made)
            try:
                os.rename(made, directory)
            except OSError:
                if not directory.is_dir():
                    raise
    except OSError as error:
        raise ModelError(directory, f"cannot be made ({error})", "give a data directory that can be written") from None
