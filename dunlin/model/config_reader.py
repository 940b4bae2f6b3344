"""Typed access to the JSON files of a checkpoint; each fault names the file and the key."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dunlin.model.errors import ModelError

MOST_NUMBER = sys.float_info.max
"""Of what becomes a float: JSON has longer whole numbers, and Python reads Infinity."""


class ConfigReader:
    """Typed access to one JSON object. What is wrong is added to `faults`, each naming the file and the key, and a
    harmless value stands in for it.
    """

    def __init__(self, path: Path, values: Mapping[str, Any], faults: list[ModelError]) -> None:
        self.path = path
        self.values = values
        self.faults = faults

    def fault(self, what: str, remedy: str = "check the file or use another checkpoint") -> None:
        self.faults.append(ModelError(self.path, what, remedy))

    def positive(self, key: str, default: int | None = None) -> int:
        value = self.values.get(key)
        value = default if value is None else value
        if value is None:
            self.fault(f"`{key}` is missing")
        elif isinstance(value, bool) or not isinstance(value, int) or value <= 0:
            self.fault(f"`{key}` must be a positive integer, not {value!r}")
        else:
            return value
        return 1

    def number(self, key: str, default: float) -> float:
        value = self.values.get(key, default)
        if not is_number(value) or not 0 < value <= MOST_NUMBER:
            self.fault(f"`{key}` must be a positive number, not {value!r}")
            return default
        return float(value)

    def optional_number(self, key: str) -> float:
        """0 where the file has none, or null."""
        return 0.0 if self.values.get(key) is None else self.number(key, 1.0)

    def flag(self, key: str, default: bool) -> bool:
        value = self.values.get(key)
        value = default if value is None else value
        if not isinstance(value, bool):
            self.fault(f"`{key}` must be true or false, not {value!r}")
            return default
        return value


def is_number(value: object) -> bool:
    """Whether it is an int or a float; true and false are neither."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`.

    :raises ModelError: the file is missing, unreadable, not JSON, or not an object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(path, "no such file", "give a directory with a Hugging Face checkpoint") from None
    except (OSError, ValueError, RecursionError) as error:  # no UTF-8, no JSON, or a number of thousands of digits
        raise ModelError(path, f"cannot be read as JSON ({error})", "fetch or write the file again") from None
    if not isinstance(value, dict):
        raise ModelError(path, "holds no JSON object", "fetch or write the file again")
    return value
