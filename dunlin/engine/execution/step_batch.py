"""A `Step` as something to compute: checked, made into a batch, and answered.

Knows the sequences' state; owns none of it but what a step writes: the slots that it names.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import accumulate, chain

import torch

from dunlin.engine.attention.base import LocalRows
from dunlin.engine.decoder.decoder import DecoderBatch
from dunlin.engine.decoder.sampling import SampledToken
from dunlin.engine.execution.sequence import EngineSequence
from dunlin.messages.engine import Step, StepDone
from dunlin.messages.types import FinishReason, GroupKind, GroupRole, f32, i8, i32, i64


class StepError(Exception):
    """A step that cannot be run; the text says why. Nothing of it was done."""


@dataclass(frozen=True, slots=True)
class QueuedStep:
    """A step in the queue, checked. `extents[i]` are row i's (start, length)."""

    step: Step
    extents: list[list[tuple[int, int]]]


@dataclass(frozen=True, slots=True)
class IterationBatch:
    """One iteration: `batch` is None when no row is left to run."""

    step: int
    batch: DecoderBatch | None
    sampled: list[tuple[int, EngineSequence]]
    dropped: list[int]
    prefill_rows: int
    decode_rows: int
    tokens: int


def check_step(step: Step, slots: int) -> QueuedStep:
    """Check a step when it is queued.

    :raises StepError: it asks for what this engine lacks, or contradicts itself.
    """
    _refuse_unsupported(step)
    rows = len(step.sequence)
    columns = (step.start, step.stop, step.sample)
    if not rows or any(len(column) != rows for column in columns):
        raise StepError(f"columns of {[rows, *map(len, columns)]} rows")
    if len(set(step.sequence)) != rows:
        raise StepError("a sequence is named twice")
    extents = _extents_by_row(step, slots)
    for row in range(rows):
        if not 0 <= step.start[row] < step.stop[row]:
            raise StepError(f"row {row} computes tokens {step.start[row]} to {step.stop[row]}")
        needed = step.stop[row] - step.start[row]
        given = sum(length for _, length in extents[row])
        if given < needed:
            raise StepError(f"row {row} writes {needed} tokens into {given} slots")
    return QueuedStep(step, extents)


def _refuse_unsupported(step: Step) -> None:
    if step.group is not GroupKind.LOCAL or step.part is not GroupRole.LOCAL or step.peers:
        raise StepError(f"group {step.group.name}: only local steps")
    if step.keep is not None or step.push is not None:
        raise StepError("keep and push")
    if any(stride != 1 for stride in step.stride):
        raise StepError("a stride other than 1")


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
class _Active:
    """A row that will run: it computes `[start, stop)` of its sequence."""

    sequence: int
    state: EngineSequence
    row: int
    start: int
    stop: int
    sample: bool


def build_batch(
    queued: QueuedStep, sequences: Mapping[int, EngineSequence], spoiled: AbstractSet[int]
) -> IterationBatch:
    """The batch of the step, without the rows of sequences that ended, closed or are `spoiled`.

    :raises StepError: a row names tokens that are not known, or leaves a gap.
    """
    step, active, dropped = queued.step, [], []
    for row, sequence in enumerate(step.sequence):
        state = sequences.get(sequence)
        if state is None or state.ended or sequence in spoiled:
            dropped.append(sequence)
        else:
            active.append(_Active(sequence, state, row, step.start[row], step.stop[row], bool(step.sample[row])))
    for each in active:
        _check_row(each)
    for each in active:
        _assign(each, queued.extents[each.row])
    return _plan(step.step, active, dropped)


def _check_row(each: _Active) -> None:
    name, known, held = f"sequence {each.sequence}", len(each.state.tokens), each.state.slots.length
    if each.stop > known:
        raise StepError(f"{name}: tokens up to {each.stop} are named, {known} are known")
    if each.sample and each.stop != known:
        raise StepError(f"{name}: token {each.stop} is to be sampled, but {known} are known")
    if each.start > held:
        raise StepError(f"{name}: token {each.start} is computed, but the KV before it ends at {held}")


def _assign(each: _Active, extents: Sequence[tuple[int, int]]) -> None:
    position = each.start
    for start, length in extents:
        each.state.slots.assign(position, start, length)
        position += length


def _plan(step: int, active: Sequence[_Active], dropped: list[int]) -> IterationBatch:
    """Pack the rows."""
    if not active:
        return IterationBatch(step, None, [], dropped, 0, 0, 0)
    tokens = list(chain.from_iterable([each.state.tokens[each.start : each.stop] for each in active]))
    positions = list(chain.from_iterable([range(each.start, each.stop) for each in active]))
    slots = list(chain.from_iterable([each.state.slots.slots(each.start, each.stop) for each in active]))
    lengths = [each.stop for each in active]
    stops = list(accumulate([each.stop - each.start for each in active]))
    rows = LocalRows([0, *stops[:-1]], stops, lengths, [each.state.slots.runs for each in active])
    sampled = [(each.sequence, each.state) for each in active if each.sample]
    last = [stop - 1 for stop, each in zip(stops, active, strict=True) if each.sample]
    decode_rows = sum(each.stop - each.start == 1 and each.start >= each.state.prompt_tokens for each in active)
    columns = [torch.tensor(column, dtype=torch.int64) for column in (tokens, positions, slots, last)]
    batch = DecoderBatch(columns[0], columns[1], columns[2], rows, columns[3])
    return IterationBatch(step, batch, sampled, dropped, len(rows) - decode_rows, decode_rows, len(tokens))


@dataclass(slots=True)
class SampledRows:
    """The result of sampling rows: tokens, whether each ended its sequence, and the sequences without a token."""

    sequences: list[int] = field(default_factory=list)
    choices: list[SampledToken] = field(default_factory=list)
    finishes: list[FinishReason] = field(default_factory=list)
    failed: list[int] = field(default_factory=list)


def apply_samples(plan: IterationBatch, choices: Sequence[SampledToken | None]) -> SampledRows:
    """Append each sampled token to its sequence, or end the sequence where there is none."""
    samples = SampledRows()
    for (sequence, state), choice in zip(plan.sampled, choices, strict=True):
        if choice is None:
            state.fail()
            samples.failed.append(sequence)
        else:
            samples.sequences.append(sequence)
            samples.choices.append(choice)
            samples.finishes.append(state.append(choice.token))
    return samples


def step_done(plan: IterationBatch, samples: SampledRows, compute_s: float, idle_s: float) -> StepDone:
    """The answer to one iteration."""
    choices = samples.choices
    top = [pair for choice in choices for pair in choice.top]
    return StepDone(
        step=plan.step,
        sequence=i64(samples.sequences),
        token=i32([choice.token for choice in choices]),
        logprob=f32([choice.logprob for choice in choices]),
        finish=i8([int(finish) for finish in samples.finishes]),
        dropped=i64(plan.dropped),
        top_count=i32([len(choice.top) for choice in choices]) if top else i32(),
        top_token=i32([token for token, _ in top]),
        top_logprob=f32([logprob for _, logprob in top]),
        prefill_rows=plan.prefill_rows,
        decode_rows=plan.decode_rows,
        tokens_computed=plan.tokens,
        compute_s=compute_s,
        idle_s=idle_s,
        failed=i64(samples.failed),
    )
