"""The models that ship with dunlin: `chat`, trained, lies beside this file; `tiny`, random, is made on first use.

It is made by a child process, so that resolving a model loads no torch.
"""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

from dunlin.model.errors import ModelError

PREFIX = "builtin:"
NAMES = ("tiny", "chat")
SHIPPED = {"chat": Path(__file__).with_name("chat")}
"""Those that are in the package, with their weights; `examples/train_builtin` made them."""
# Part of the directory's name: a checkpoint made by another version of this code is left alone.
VERSION = 1


def models_folder(data_dir: Path) -> Path:
    """Where built-in models are kept: $DUNLIN_MODELS, which many clusters may share, else under the data directory."""
    return Path(os.environ.get("DUNLIN_MODELS") or data_dir / "models")


def resolve_model(model: str, cache: Path) -> Path:
    """The directory of `model`: itself, or for `builtin:NAME` a shipped one, or one under `cache`, made once.

    :raises ModelError: no such built-in model, or the cache cannot be written.
    """
    if not model.startswith(PREFIX):
        return Path(model)
    name = model.removeprefix(PREFIX)
    if name not in NAMES:
        raise ModelError(model, "no such built-in model", f"choose one of {', '.join(PREFIX + each for each in NAMES)}")
    if name in SHIPPED:
        return SHIPPED[name]
    directory = cache / f"builtin-{name}-{VERSION}"
    if not directory.is_dir():
        _make(directory)
    return directory


def served_name(model: str, chosen: str = "") -> str:
    """What clients call `model`: the name that was chosen for it, `builtin:NAME`, or that of its directory."""
    return chosen or (model if model.startswith(PREFIX) else Path(model).resolve().name)


def _make(directory: Path) -> None:
    """Make the checkpoint once, though several processes may ask: in a child process, so that none loads torch."""
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with (directory.parent / f"{directory.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not directory.is_dir():
                _make_in_child(directory)
    except OSError as error:
        raise ModelError(directory, f"cannot be made ({error})", "give a data directory that can be written") from None


def _make_in_child(directory: Path) -> None:
    command = [sys.executable, "-m", "dunlin.engine.decoder.loading.random_checkpoint", str(directory.absolute())]
    # From where dunlin lies: what the user's own directory holds must not shadow it.
    home = Path(__file__).parents[2]
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, cwd=home)
    if done.returncode != 0:
        said = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
        raise ModelError(directory, f"cannot be made ({said})", "give a data directory that can be written")
