"""A runner without its process, and moves between its slab and a host tier."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dunlin.engine.decoder.loading.loader import LoadedModel
from dunlin.engine.execution.limits import RunnerLimits
from dunlin.engine.execution.runner import EngineRunner
from dunlin.messages.engine import (
    Close,
    MapHost,
    Transfer,
    TransferDone,
)
from dunlin.messages.types import (
    HostRegion,
    Region,
    TransferKind,
    TransferStatus,
    i64,
)
from tests.engine.build import SteppingClock, nothing
from tests.engine.commands import PROMPT, make_open, make_step

N = len(PROMPT)

KV_BYTES_PER_TOKEN = 3 * 2 * 2 * 16 * 4

OTHER = [3, 1, 4, 1, 5, 9, 2, 6]


def make_runner(loaded: LoadedModel, **overrides: Any) -> EngineRunner:
    values = {"clock": SteppingClock(), "limits": RunnerLimits(), **overrides}
    return EngineRunner(loaded.decoder, loaded.slots, values["clock"], values["limits"])


def run(runner: EngineRunner, *messages: Any) -> list[Any]:
    """Feed the messages, then work until nothing is left."""
    events = [event for message in messages for event in runner.receive(message)]
    while runner.busy:
        events += runner.work(nothing)
    return events


def generate(
    runner: EngineRunner, sequence: int, tokens: Sequence[int], count: int, slot: int, **overrides: Any
) -> list[int]:
    """`count` greedy tokens of a sequence alone in its steps."""
    end = len(tokens)
    rows = [(0, end), *((end + i, end + i + 1) for i in range(count - 1))]
    steps = [make_step(i, (sequence, start, stop, slot + start)) for i, (start, stop) in enumerate(rows)]
    done = run(runner, make_open(sequence, tokens, max_tokens=count + 1, **overrides), *steps)
    run(runner, Close(sequence))
    return [event.token[0] for event in done]


def map_host(tier: Path) -> MapHost:
    return MapHost(str(tier), 1 << 20, 1)


def make_move(
    move: int, kind: TransferKind, sequence: int, stop: int, *extents: tuple[int, int], **overrides: Any
) -> Transfer:
    length = KV_BYTES_PER_TOKEN * stop
    host = HostRegion(
        handle=1, generation=1, offset_bytes=4096, length_bytes=length, checksum=overrides.pop("checksum", 0)
    )
    region = Region(0, 3, 0, stop)
    starts, lengths = i64([start for start, _ in extents]), i64([count for _, count in extents])
    values = {"extent_start": starts, "extent_length": lengths, "region": region, "host": host, **overrides}
    return Transfer(ticket=move, kind=kind, sequence=sequence, **values)


def save(runner: EngineRunner, tier: Path) -> TransferDone:
    """Compute the prompt in slots 20 and on, and write its KV to the tier."""
    moved = make_move(1, TransferKind.SLAB_TO_HOST, 1, N, (20, 4), (24, N - 4))
    run(runner, map_host(tier), make_open(1), make_step(1, (1, 0, N, 20)))
    answer: TransferDone
    (answer,) = run(runner, Close(1), moved)
    assert answer.status is TransferStatus.OK
    assert answer.moved_bytes == N * KV_BYTES_PER_TOKEN
    return answer
