"""A `Step` as something to compute: checked, made into rows and a batch, and answered.

Knows the sequences' state; owns none of it but what a step writes: the slots that it names.
"""

from collections.abc import Container, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import accumulate, chain

import torch

from dunlin.engine.attention.base import Attention, BatchRow, LocalRows, local_row
from dunlin.engine.decoder.decoder import DecoderBatch
from dunlin.engine.decoder.sampling.sampling import SampledToken
from dunlin.engine.execution.peers.peer_spans import WITH_PEERS, check_columns, striped_rows
from dunlin.engine.execution.peers.split_rows import RowSplit, batch_row, row_positions, row_splits, wrong_split
from dunlin.engine.execution.sequence import ELSEWHERE, EngineSequence
from dunlin.engine.transfer.transit_rooms import RoomRow
from dunlin.messages.engine import Step
from dunlin.messages.types import FinishReason, GroupKind, Keep, PromptScores


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
    hidden states, or the token that it samples, go into the room `hidden_out` (0: into none). `split`: where
    other keys of it lie than those here.
    """

    sequence: int
    state: EngineSequence
    start: int
    stop: int
    sample: bool
    hidden_out: int = 0
    stride: int = 1
    split: RowSplit | None = None

    @property
    def positions(self) -> range:
        return range(self.start, self.stop, self.stride)

    @property
    def tokens(self) -> int:
        return len(range(self.start, self.stop, self.stride))

    @property
    def name(self) -> RoomRow:
        """The row in transit rooms."""
        return self.sequence, self.positions

    @property
    def is_decode(self) -> bool:
        """Whether it computes one token that was generated."""
        return self.stop - self.start == 1 and self.start >= self.state.prompt_tokens

    @property
    def is_unread(self) -> bool:
        """Whether it computes a token that a device chose and the host does not know yet."""
        return self.stop > len(self.state.tokens)

    @property
    def valid_stop(self) -> int:
        """The tokens that have KV after the step, here or elsewhere."""
        return self.stop if self.split is None or self.split.stripe is None else self.split.covered.stop

    def issue(self, layers: range, extents: list[tuple[int, int]]) -> None:
        """Let the sequence know the slots that the row writes, or keeps, and which tokens before it lie elsewhere."""
        is_ring = self.split is not None and self.split.stripe is not None
        start = self.split.covered.start if self.split is not None and is_ring else self.start
        known = min(start, self.state.valid.tokens(layers))
        between = [(ELSEWHERE, start - known)] if known < start else []
        written = self.split.extents() if self.split is not None and is_ring else extents
        self.state.issue(layers, known, [*between, *written])


def step_layers(step: Step, shape: EngineShape) -> range:
    """The layers that the step computes."""
    return range(step.layer_start, step.layer_stop or shape.stop)


def check_step(step: Step, shape: EngineShape) -> list[list[tuple[int, int]]]:
    """Check a step when it is queued; returns each row's extents (start, length).

    :raises StepError: it asks for what this engine lacks, or contradicts itself.
    """
    check_layers(step, shape)
    rows = len(step.sequence)
    columns = (step.start, step.stop, step.sample, step.stride or step.start)
    if not (rows or step.serve is not None) or any(len(column) != rows for column in columns):
        raise StepError(f"columns of {[rows, *map(len, columns)]} rows")
    if len(set(step.sequence)) != rows:
        raise StepError("a sequence is named twice")
    extents = _extents_by_row(step, shape.slots)
    _check_group(step, shape)
    for row in range(rows):
        if not 0 <= step.start[row] < step.stop[row]:
            raise StepError(f"row {row} computes tokens {step.start[row]} to {step.stop[row]}")
        needed = len(row_positions(step, row))
        given = sum(length for _, length in extents[row])
        if given < needed:
            raise StepError(f"row {row} writes {needed} tokens into {given} slots")
    return extents


def _check_group(step: Step, shape: EngineShape) -> None:
    has_peers = step.group in WITH_PEERS
    if not has_peers and (step.peers or step.span_row or step.serve is not None):
        raise StepError(f"group {step.group.name}: spans that lie elsewhere are a ring's or masters'")
    if has_peers and not step.peers:
        raise StepError(f"group {step.group.name} without peers")
    if wrong := check_columns(step):
        raise StepError(wrong)
    striped = striped_rows(step)
    if step.keep is not None and not (step.group is GroupKind.RING and set(step.keep.row) <= striped):
        raise StepError("keep of rows that are no stripes of a ring")
    if step.keep is not None and not _is_kept_whole(step, step.keep, shape):
        raise StepError("keep of a part of the step's layers, or in slots that are not there")
    served = zip(step.serve.slot, step.serve.span_start, step.serve.span_stop, strict=True) if step.serve else ()
    if any(slot < 0 or slot + stop - start > shape.slots for slot, start, stop in served):
        raise StepError("served spans in slots that are not there")
    with_stride = {row for row, stride in enumerate(step.stride) if stride != 1}
    if min(step.stride, default=1) < 1 or not with_stride <= striped:
        raise StepError("a stride of a row that is no stripe of a ring")


def _is_kept_whole(step: Step, keep: Keep, shape: EngineShape) -> bool:
    layers = step_layers(step, shape)
    is_all = set(keep.layer_start) <= {layers.start} and set(keep.layer_stop) <= {layers.stop}
    columns = zip(keep.slot, keep.start, keep.stop, strict=True)
    return is_all and all(
        slot >= 0 and start < stop and slot + stop - start <= shape.slots for slot, start, stop in columns
    )


def is_plain(step: Step, shape: EngineShape) -> bool:
    """Whether it is computed here alone, through all layers, and waits for nothing but its turn."""
    is_whole = step.layer_start == 0 and step.layer_stop in (0, shape.layers) and shape.stop == shape.layers
    is_bound = step.after or step.peers or step.serve is not None or step.hidden_in or step.hidden_out
    return is_whole and not is_bound


def is_plain_decode(step: Step) -> bool:
    """Whether all rows of a plain step sample the token after one token, and none may leave it."""
    rows = zip(step.start, step.stop, step.sample, strict=True)
    return not step.preemptible and all(stop - start == 1 and sample for start, stop, sample in rows)


def check_layers(step: Step, shape: EngineShape) -> None:
    """:raises StepError: it was composed for another layout, or for layers that are not held."""
    if step.layout != shape.layout:
        raise StepError(f"composed for layout {step.layout}, layout {shape.layout} is in force")
    layers = step_layers(step, shape)
    if not 0 <= layers.start < layers.stop <= shape.layers:
        raise StepError(f"layers {layers.start} to {layers.stop} of a model of {shape.layers}")
    if shape.held is not None and not set(layers) <= set(shape.held):
        raise StepError(f"layers {layers.start} to {layers.stop} are not held, but {list(shape.held)}")
    if layers.start > 0 and not step.hidden_in:
        raise StepError(f"it starts at layer {layers.start} with hidden states from room {step.hidden_in}")
    if layers.stop < shape.layers and not step.hidden_out:
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
    numbers: dict[int, int]
    """The index in `rows` of those rows of the step that run, by their index in it."""
    splits: dict[int, RowSplit]


def runnable_rows(
    step: Step,
    extents: Sequence[list[tuple[int, int]]],
    left: Container[int],
    sequences: Mapping[int, EngineSequence],
    spoiled: AbstractSet[int],
    layers: range,
    samples: bool,
) -> RunnableRows:
    """The rows of a step but those that `left`, and those of sequences that ended, closed or are `spoiled`.

    `samples`: the step's last layer is the model's.

    :raises StepError: a row names tokens that are not known, or leaves a gap.
    """
    splits = row_splits(step, extents) if step.span_row else {}
    found = RunnableRows([], [], [], {}, splits)
    for at, sequence in enumerate(step.sequence):
        if sequence in left:
            continue
        state = sequences.get(sequence)
        if state is None or state.ended or sequence in spoiled:
            found.dropped.append(sequence)
            continue
        sample = samples and bool(step.sample[at])
        start, stop, split = step.start[at], step.stop[at], splits.get(at)
        stride = step.stride[at] if step.stride else 1
        stop -= (stop - start - 1) % stride
        row = StepRow(sequence, state, start, stop, sample, step.hidden_out, stride, split)
        _check_row(row, layers)
        if samples and state.sampling.prompt_logprobs is not None:
            _check_scores(row)
        if step.peers:
            found.numbers[at] = len(found.rows)
        found.rows.append(row)
        found.extents.append(extents[at])
    return found


def _check_row(row: StepRow, layers: range) -> None:
    name, known, held = f"sequence {row.sequence}", row.state.known, row.state.valid.tokens(layers)
    if row.stop > known:
        raise StepError(f"{name}: tokens up to {row.stop} are named, {known} are known")
    if row.sample and row.stop != known:
        raise StepError(f"{name}: token {row.stop} is to be sampled, but {known} are known")
    if row.split is not None:
        if row.valid_stop > known:
            raise StepError(f"{name}: stripes up to {row.valid_stop} are named, {known} tokens are known")
        if wrong := wrong_split(row.split, row.positions, row.state.slots, held):
            raise StepError(f"{name}: {wrong}")
    elif row.state.slots.is_split and (wrong := wrong_split(RowSplit(()), row.positions, row.state.slots, held)):
        raise StepError(f"{name}: {wrong}")
    elif row.start > held:
        raise StepError(f"{name}: token {row.start} is computed, but the KV before it ends at {held}")


def _check_scores(row: StepRow) -> None:
    name = f"sequence {row.sequence}"
    if row.state.unscored(0, row.start):
        known = row.state.scored
        raise StepError(f"{name}: token {row.start} is computed, but the prompt's log-probabilities end at {known}")
    if row.split is not None and row.state.unscored(row.start, row.stop):
        raise StepError(f"{name}: log-probabilities of a prompt that lies at several engines")


def pack_rows(active: Sequence[StepRow], backend: Attention) -> DecoderBatch:
    """The batch of the rows; every row's last token is sampled or not as `StepRow.sample` says. A token that was not
    read yet is 0 in it.
    """
    if any(each.split is not None for each in active):
        return _pack_split(active, backend)
    tokens = list(chain.from_iterable([each.state.tokens[each.start : each.stop] or _UNREAD for each in active]))
    positions = list(chain.from_iterable([range(each.start, each.stop) for each in active]))
    slots = list(chain.from_iterable([each.state.slots.slots(each.start, each.stop) for each in active]))
    stops = list(accumulate([each.stop - each.start for each in active]))
    runs = [each.state.slots.runs for each in active]
    rows = LocalRows([0, *stops[:-1]], stops, [each.stop for each in active], runs)
    last = [stop - 1 for stop, each in zip(stops, active, strict=True) if each.sample]
    columns = [torch.tensor(column, dtype=torch.int64) for column in (tokens, positions, slots, last)]
    return DecoderBatch(columns[0], columns[1], columns[2], rows, columns[3])


_UNREAD = [0]


def _pack_split(active: Sequence[StepRow], backend: Attention) -> DecoderBatch:
    """The batch of rows of which some have keys elsewhere."""
    tokens = list(chain.from_iterable(each.state.tokens[each.start : each.stop : each.stride] for each in active))
    positions = list(chain.from_iterable(each.positions for each in active))
    rows: list[BatchRow] = []
    slots: list[int] = []
    for each in active:
        at, split, known = len(slots), each.split, each.state.slots
        if split is None:
            rows.append(local_row(at, at + each.tokens, known.span(each.stop)))
        else:
            rows.append(batch_row(split, each.positions, at, known, backend))
        if split is None or split.stripe is None:
            slots += known.slots(each.start, each.stop)
        else:
            slots += split.stripe.slots().tolist()
    last = [row.stop - 1 for row, each in zip(rows, active, strict=True) if each.sample]
    columns = [torch.tensor(column, dtype=torch.int64) for column in (tokens, positions, slots, last)]
    return DecoderBatch(columns[0], columns[1], columns[2], rows, columns[3])


def row_adapters(active: Sequence[StepRow]) -> torch.Tensor | None:
    """The number of each packed token's adapter; None: no row has one."""
    numbers = [each.state.adapter for each in active]
    if not any(numbers):
        return None
    return torch.tensor(numbers).repeat_interleave(torch.tensor([each.tokens for each in active]))


@dataclass(slots=True)
class SampledRows:
    """The result of a step's rows: sampled tokens, whether each ended its sequence, the sequences that have none; and
    the log-probabilities of prompt tokens.
    """

    sequences: list[int] = field(default_factory=list)
    choices: list[SampledToken] = field(default_factory=list)
    finishes: list[FinishReason] = field(default_factory=list)
    failed: list[int] = field(default_factory=list)
    scores: PromptScores | None = None


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
