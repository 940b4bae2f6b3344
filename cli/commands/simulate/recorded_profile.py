"""The profile of the engines that a recorded run was served by: that very configuration, or a refusal.

Step times of another precision, number of threads or ranks, or machine would be compared with times of this one.
"""

import shlex
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dunlin.cost.engine_timing import EngineTiming
from dunlin.cost.store import ProfileKey, ProfileStore, StoreError
from dunlin.engine.device.names import CPU
from services.instance.step_profile import engine_times_key

if TYPE_CHECKING:
    from services.instance.process_config import EngineConfig

_ANY = "the machine of the run"


def load_recorded_timing(path: Path, facts: Mapping[str, Any]) -> EngineTiming:
    """The timing in the store `path` that is true of the run's engines.

    Raises:
        RunError: the record does not say how its engines computed.
        StoreError: there is none, or the record does not say on which of several machines they computed; the text
            names those that there are, and the command that makes the one that is wanted.
    """
    engine = import_module("simulator.study.recorded_cluster").recorded_engine(facts)
    model = str((facts.get("launched") or {}).get("model", "builtin:tiny"))
    wanted = engine_times_key(engine, model, str(facts.get("processor") or ""))  # older records do not name it
    with ProfileStore(path) as store:
        known = store.keys()
        fitting = [key for key in known if _fits(key, wanted)]
        if len(fitting) == 1:
            return store.timing_of(fitting[0])
    text = f"no profile of {wanted.model} on {wanted.device or _ANY}, {wanted.parallelism}, as the run had"
    if fitting:
        text = (
            "the record does not say on which of these machines it ran: keep the profile of one in a store of its own"
        )
    measured = "; ".join(map(str, fitting or known)) or "none yet"
    raise StoreError(f"{path}: {text}; measured: {measured}; {_command(model, engine, path)} makes it")


def _fits(key: ProfileKey, wanted: ProfileKey) -> bool:
    is_there = not wanted.device or key.device == wanted.device
    return is_there and (key.model, key.parallelism) == (wanted.model, wanted.parallelism)


def _command(model: str, engine: "EngineConfig", path: Path) -> str:
    words = ["dunlin", "profile", "--model", model, "--dtype", engine.dtype, "--threads", str(engine.threads)]
    words += ["--kv-dtype", engine.kv_dtype] if engine.kv_dtype != "auto" else []
    words += ["--device", engine.device] if engine.device != CPU else []
    words += ["--tp", str(engine.ranks)] if engine.ranks > 1 else []
    words += ["--deterministic"] if engine.deterministic else []
    return f"`{shlex.join([*words, '--out', str(path)])}` there"
