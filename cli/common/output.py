"""Printing: messages as JSON, and columns that line up. Knows no command."""

import dataclasses
import json
import math
import re
from array import array
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any


def to_json_value(value: Any) -> Any:
    """`value` in JSON's types: records as objects, enums by lower-case name, columns as lists, bytes as hex,
    infinity (a time that never came) as null.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_json_value(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if hasattr(value, "_asdict"):  # a named tuple
        return to_json_value(value._asdict())
    if isinstance(value, IntEnum):
        return value.name.lower()
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Mapping):
        return {str(key): to_json_value(item) for key, item in value.items()}
    if isinstance(value, (array, list, tuple)):
        return [to_json_value(item) for item in value]
    return None if value == math.inf else value


def as_json(value: Any, indent: int | None = 2) -> str:
    """`value` as JSON, in one line without `indent`. NaN is refused (ValueError): it is no JSON."""
    return json.dumps(to_json_value(value), indent=indent, allow_nan=False)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their longest cell; a column of numbers is flush right."""
    lines = [header, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    right = [bool(rows) and all(_number(row[i]) for row in rows) for i in range(len(header))]
    return "\n".join(
        "  ".join(_cell(*cell) for cell in zip(line, widths, right, strict=True)).rstrip() for line in lines
    )


_NUMBER = re.compile(r"[-+]?\d[\d.,]*(?:e[-+]\d+)?(?:/\d+|%|[kMG]|\+)?(?: (?:s|ms|us|ns|%|bytes|[KMGT]i?B|kB))?")


def _number(text: str) -> bool:
    """A name that begins with a digit is none."""
    return text in ("", "-") or _NUMBER.fullmatch(text) is not None


def _cell(text: str, width: int, right: bool) -> str:
    return text.rjust(width) if right else text.ljust(width)
