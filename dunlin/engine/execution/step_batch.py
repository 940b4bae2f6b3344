"""A `Step` as something to compute: checked, made into rows and a batch, and answered.

Knows the sequences' state; owns none of it but what a step writes: the slots that it names.
"""

from collections.abc import Container, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import accumulate, chain

import torch

from dunlin.engine.attention.base import LocalRows
from dunlin.engine.decoder.decoder import DecoderBatch
from dunlin.engine.decoder.sampling import SampledToken
from dunlin.engine.execution.sequence import EngineSequence
from dunlin.messages.engine import Step
from dunlin.messages.types import FinishReason, GroupKind, GroupRole


class StepError(Exception):
    """A step that cannot be run; the text says why. Nothing of it was done."""


@dataclass(frozen=True, slots=True)
class EngineShape:
    """What a step is checked against: the slots of each layer held, the layers of the model, the layout in force, and
    the layers held (None: all).
    """

    slots: int
    layers: int
    layout: int = 0
    held: tuple[int, ...] | None = None

    @property
    def stop(self) -> int:
        """The layer after the last one held."""
        return self.layers if self.held is None else self.held[-1] + 1


@dataclass(frozen=True, slots=True)
class StepRow:
    """A row that runs: it computes tokens `[start, stop)` of its sequence, and a next one if it is to `sample`; its
    hidden states go into the room `hidden_out` (0: into none).
    """

    sequence: int
    state: EngineSequence
    start: int
    stop: int
    sample: bool
    hidden_out: int = 0

    @property
    def tokens(self) -> int:
        return self.stop - self.start

    @property
    def is_decode(self) -> bool:
        """Whether it computes one token that was generated."""
        return self.stop - self.start == 1 and self.start >= self.state.prompt_tokens


def step_layers(step: Step, shape: EngineShape) -> range:
    """The layers that the step computes."""
    return range(step.layer_start, step.layer_stop or shape.stop)


def check_step(step: Step, shape: EngineShape) -> list[list[tuple[int, int]]]:
    """Check a step when it is queued; returns each row's extents (start, length).

    :raises StepError: it asks for what this engine lacks, or contradicts itself.
    """
    _refuse_unsupported(step)
    check_layers(step, shape)
    rows = len(step.sequence)
    columns = (step.start, step.stop, step.sample)
    if not rows or any(len(column) != rows for column in columns):
        raise StepError(f"columns of {[rows, *map(len, columns)]} rows")
    if len(set(step.sequence)) != rows:
        raise StepError("a sequence is named twice")
    extents = _extents_by_row(step, shape.slots)
    for row in range(rows):
        if not 0 <= step.start[row] < step.stop[row]:
            raise StepError(f"row {row} computes tokens {step.start[row]} to {step.stop[row]}")
        needed = step.stop[row] - step.start[row]
        given = sum(length for _, length in extents[row])
        if given < needed:
            raise StepError(f"row {row} writes {needed} tokens into {given} slots")
    return extents


def _refuse_unsupported(step: Step) -> None:
    if step.group is not GroupKind.LOCAL or step.part is not GroupRole.LOCAL or step.peers:
        raise StepError(f"group {step.group.name}: only local steps")
    if step.span_row or step.span_holder:
        raise StepError("spans that lie elsewhere: only local steps")
    if step.keep is not None or step.push is not None:
        raise StepError("keep and push")
    if any(stride != 1 for stride in step.stride):
        raise StepError("a stride other than 1")


def check_layers(step: Step, shape: EngineShape) -> None:
    """:raises StepError: it was composed for another layout, or for layers that are not held."""
    if step.layout != shape.layout:
        raise StepError(f"composed for layout {step.layout}, layout {shape.layout} is in force")
    layers = step_layers(step, shape)
    if not 0 <= layers.start < layers.stop <= shape.layers:
        raise StepError(f"layers {layers.start} to {layers.stop} of a model of {shape.layers}")
    if shape.held is not None and not set(layers) <= set(shape.held):
        raise StepError(f"layers {layers.start} to {layers.stop} are not held, but {list(shape.held)}")
    if (layers.start > 0) != (step.hidden_in > 0):
        raise StepError(f"it starts at layer {layers.start} with hidden states from room {step.hidden_in}")
    if (layers.stop < shape.layers) != (step.hidden_out > 0):
        raise StepError(f"it stops at layer {layers.stop} with hidden states to room {step.hidden_out}")


def _extents_by_row(step: Step, slots: int) -> list[list[tuple[int, int]]]:
    if not len(step.extent_row) == len(step.extent_start) == len(step.extent_length):
        raise StepError("extent columns of different lengths")
    extents: list[list[tuple[int, int]]] = [[] for _ in step.sequence]
    for row, start, length in zip(step.extent_row, step.extent_start, step.extent_length, strict=True):
        if not 0 <= row < len(extents):
            raise StepError(f"an extent of row {row} among {len(extents)} rows")
        if start < 0 or length <= 0 or start + length > slots:
            raise StepError(f"row {row}: an extent of {length} slots from {start} in a slab of {slots}")
        extents[row].append((start, length))
    return extents


@dataclass(frozen=True, slots=True)
class RunnableRows:
    """The rows of a step that run, and the sequences whose rows do not. `extents[i]` are those that row i writes."""

    rows: list[StepRow]
    extents: list[list[tuple[int, int]]]
    dropped: list[int]


def runnable_rows(
    step: Step,
    extents: Sequence[list[tuple[int, int]]],
    left: Container[int],
    sequences: Mapping[int, EngineSequence],
    spoiled: AbstractSet[int],
    layers: range,
) -> RunnableRows:
    """The rows of a step but those that `left`, and those of sequences that ended, closed or are `spoiled`.

    :raises StepError: a row names tokens that are not known, or leaves a gap.
    """
    found = RunnableRows([], [], [])
    samples = not step.hidden_out
    for at, sequence in enumerate(step.sequence):
        if sequence in left:
            continue
        state = sequences.get(sequence)
        if state is None or state.ended or sequence in spoiled:
            found.dropped.append(sequence)
            continue
        sample = samples and bool(step.sample[at])
        row = StepRow(sequence, state, step.start[at], step.stop[at], sample, step.hidden_out)
        _check_row(row, layers)
        found.rows.append(row)
        found.extents.append(extents[at])
    return found


def _check_row(row: StepRow, layers: range) -> None:
    name, known, held = f"sequence {row.sequence}", len(row.state.tokens), row.state.valid.tokens(layers)
    if row.stop > known:
        raise StepError(f"{name}: tokens up to {row.stop} are named, {known} are known")
    if row.sample and row.stop != known:
        raise StepError(f"{name}: token {row.stop} is to be sampled, but {known} are known")
    if row.start > held:
        raise StepError(f"{name}: token {row.start} is computed, but the KV before it ends at {held}")


def pack_rows(active: Sequence[StepRow]) -> DecoderBatch:
    """The batch of the rows; every row's last token is sampled or not as `StepRow.sample` says."""
    tokens = list(chain.from_iterable([each.state.tokens[each.start : each.stop] for each in active]))
    positions = list(chain.from_iterable([range(each.start, each.stop) for each in active]))
    slots = list(chain.from_iterable([each.state.slots.slots(each.start, each.stop) for each in active]))
    stops = list(accumulate([each.stop - each.start for each in active]))
    runs = [each.state.slots.runs for each in active]
    rows = LocalRows([0, *stops[:-1]], stops, [each.stop for each in active], runs)
    last = [stop - 1 for stop, each in zip(stops, active, strict=True) if each.sample]
    columns = [torch.tensor(column, dtype=torch.int64) for column in (tokens, positions, slots, last)]
    return DecoderBatch(columns[0], columns[1], columns[2], rows, columns[3])


@dataclass(slots=True)
class SampledRows:
    """The result of sampling rows: tokens, whether each ended its sequence, and the sequences without a token."""

    sequences: list[int] = field(default_factory=list)
    choices: list[SampledToken] = field(default_factory=list)
    finishes: list[FinishReason] = field(default_factory=list)
    failed: list[int] = field(default_factory=list)


def apply_samples(rows: Sequence[StepRow], choices: Sequence[SampledToken | None]) -> SampledRows:
    """Append each sampled token to its sequence, or end the sequence where there is none."""
    samples = SampledRows()
    for row, choice in zip(rows, choices, strict=True):
        if choice is None:
            row.state.fail()
            samples.failed.append(row.sequence)
        else:
            samples.sequences.append(row.sequence)
            samples.choices.append(choice)
            samples.finishes.append(row.state.append(choice.token))
    return samples
