"""Commands for an engine; a test names only what it varies."""

from array import array
from collections.abc import Sequence
from typing import Any

from dunlin.messages.engine import Open, Step
from dunlin.messages.types import SamplingParams, i8, i32, i64

PROMPT = [7, 300, 42, 111, 5, 260, 33, 90, 12, 401]


def make_open(sequence: int = 1, tokens: Sequence[int] = PROMPT, **overrides: Any) -> Open:
    sampling = overrides.pop("sampling", SamplingParams(temperature=0.0))
    stop_ids = i32(overrides.pop("stop_ids", ()))
    values = {"prompt_tokens": len(tokens), "max_tokens": 20, **overrides}
    return Open(sequence=sequence, tokens=i32(list(tokens)), sampling=sampling, stop_ids=stop_ids, **values)


def make_step(
    step: int, *rows: tuple[int, int, int, int], sample: Sequence[int] | None = None, **overrides: Any
) -> Step:
    """Rows are (sequence, start, stop, first slot); all sample unless told otherwise."""
    columns: dict[str, array[int]] = {
        "sequence": i64([row[0] for row in rows]),
        "start": i64([row[1] for row in rows]),
        "stop": i64([row[2] for row in rows]),
        "sample": i8(list(sample) if sample is not None else [1] * len(rows)),
        "extent_row": i32(list(range(len(rows)))),
        "extent_start": i64([row[3] for row in rows]),
        "extent_length": i64([row[2] - row[1] for row in rows]),
    }
    return Step(step=step, **{**columns, **overrides})
