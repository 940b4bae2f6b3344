"""Starts steps: which of a queued step's rows run, with what of peers, and the iteration that computes them.

Knows no queue and no interrupt.
"""

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from torch import Tensor

from dunlin.effects import Address
from dunlin.engine.decoder.decoder import Decoder
from dunlin.engine.execution.parked_rows import ParkedRows
from dunlin.engine.execution.parked_steps import ParkedSteps
from dunlin.engine.execution.peers.exchange import ServingIteration, StepExchange
from dunlin.engine.execution.peers.peer_spans import served_parts
from dunlin.engine.execution.peers.split_rows import feeding_rows, split_rows
from dunlin.engine.execution.peers.stage_rooms import StageRooms
from dunlin.engine.execution.prompt_scores import PromptScorer
from dunlin.engine.execution.running_step import RunningStep
from dunlin.engine.execution.sequence import EngineSequence
from dunlin.engine.execution.step_batch import (
    EngineShape,
    RunnableRows,
    StepError,
    check_layers,
    runnable_rows,
    step_layers,
)
from dunlin.engine.execution.step_iterations import StepIterations
from dunlin.engine.execution.step_queue import QueuedStep
from dunlin.engine.transfer.errors import TransferError
from dunlin.engine.transfer.peer_link import PeerLink
from dunlin.engine.transfer.transit_rooms import TransitRooms
from dunlin.messages.engine import Step
from dunlin.messages.types import Ints


class StepStarter:
    """Starts the steps of one engine. `sequences` are the open ones; `parked` and `suspended` are the engine's; the
    rest as for `StepRunner`. `scorer` computes log-probabilities of prompts; `give_up` tells peers not to wait.
    """

    def __init__(
        self,
        decoder: Decoder,
        shape: EngineShape,
        sequences: Mapping[int, EngineSequence],
        parked: ParkedRows,
        suspended: ParkedSteps,
        rooms: TransitRooms,
        links: Callable[[Sequence[Address], Ints, Ints, int], list[PeerLink]],
        iterations: StepIterations,
        scorer: PromptScorer,
        give_up: Callable[[RunningStep | QueuedStep], None],
    ) -> None:
        self._decoder = decoder
        self._shape = shape
        self._sequences = sequences
        self._parked = parked
        self._suspended = suspended
        self._stage_rooms = StageRooms(rooms, sequences, decoder)
        self._links = links
        self._iterations = iterations
        self._scorer = scorer
        self._give_up = give_up

    def change_shape(self, shape: EngineShape) -> None:
        """Layers or slots changed."""
        self._shape = shape

    def begin(self, queued: QueuedStep, spoiled: AbstractSet[int]) -> RunningStep:
        """Whatever is queued: a step, rows that go on, or a suspended step. `spoiled`: sequences whose KV is not there.

        :raises StepError: it cannot be run; nothing of it was done.
        """
        if queued.parked:
            return self._begin_suspended(queued, spoiled)
        if queued.step is not None:
            return self.start(queued, queued.step, spoiled)
        try:
            return self.resume(queued, spoiled)
        except StepError:
            self._parked.unclaim(queued.sequences)
            raise

    def start(
        self, queued: QueuedStep, step: Step, spoiled: AbstractSet[int], tokens: Tensor | None = None
    ) -> RunningStep:
        """The step, begun. `tokens`: on the device, those that the host does not know yet, in the order of its rows.

        :raises StepError: it cannot be run; nothing of it was done.
        """
        check_layers(step, self._shape)  # they may have changed since it was queued
        layers = step_layers(step, self._shape)
        samples = layers.stop == self._shape.layers
        if step.hidden_in and layers.start == 0:
            self._stage_rooms.learn_tokens(step)
        found = runnable_rows(step, queued.extents, queued.left, self._sequences, spoiled, layers, samples)
        if tokens is not None and sum(row.is_unread for row in found.rows) != len(tokens):
            raise StepError("rows are gone whose tokens were not read")
        for row in found.rows:
            if row.sequence in self._parked or row.sequence in self._suspended:
                raise StepError(f"sequence {row.sequence} has a parked row: resume or discard it first")
        self._stage_rooms.check(found.rows)
        exchange = self._exchange(step, queued.extents, found)
        hidden = self._stage_rooms.take_hidden(step.hidden_in, found.rows) if layers.start and found.rows else None
        for row, extents in zip(found.rows, found.extents, strict=True):
            row.issue(layers, extents)
        may_leave = step.preemptible or exchange is not None
        iteration = (
            self._iterations.make(found.rows, layers, hidden, (), exchange, may_leave, tokens) if found.rows else None
        )
        serving = ServingIteration(exchange, layers) if exchange is not None and exchange.is_serving else None
        work = iteration or serving
        running = RunningStep(
            queued.number, found.rows, layers, work, found.dropped, queued.untold, exchange, step.preemptible,
            step.own_room, self._scorer if samples else None,
        )  # fmt: skip
        if running.done:  # no row runs: peers that wait for this step would wait in vain
            running.give_up()
        return running

    def resume(self, queued: QueuedStep, spoiled: AbstractSet[int]) -> RunningStep:
        """Parked rows go on together.

        :raises StepError: they cannot; they are parked still.
        """
        gone = [each for each in queued.sequences if each not in self._sequences or each in spoiled]
        parked = [self._parked.get(each) for each in queued.sequences if each not in gone]
        rows = [each.row for each in parked]
        for each in parked:
            each.check_kv()
        self._stage_rooms.check(rows)
        for sequence in queued.sequences:
            self._parked.remove(sequence)
        if not parked:
            return RunningStep(queued.number, (), range(0), None, gone, queued.left)
        iteration = self._iterations.make(rows, parked[0].layers, resumed=[each.progress for each in parked])
        scorer = self._scorer if parked[0].layers.stop == self._shape.layers else None
        return RunningStep(queued.number, rows, parked[0].layers, iteration, gone, queued.left, scorer=scorer)

    def _begin_suspended(self, queued: QueuedStep, spoiled: AbstractSet[int]) -> RunningStep:
        parked = self._suspended.take(queued.parked)
        try:
            if parked.layout != self._shape.layout:
                raise StepError(f"composed for layout {parked.layout}, layout {self._shape.layout} is in force")
            if isinstance(parked.step, QueuedStep):
                return self.begin(parked.step.resumed_by(queued), spoiled)
        except StepError:
            self._give_up(parked.step)
            raise
        self._suspended.make_way(parked.step.own_rooms)
        parked.step.go_on(queued.number, spoiled, queued.left)
        return parked.step

    def _exchange(
        self, step: Step, extents: Sequence[list[tuple[int, int]]], found: RunnableRows
    ) -> StepExchange | None:
        """:raises StepError: a peer was not met, or a room is not there."""
        if not step.peers:
            return None
        self._suspended.make_way(step.own_room)
        try:
            links = self._links(step.peers, step.own_room, step.peer_room, step.exchange)
        except TransferError as error:
            raise StepError(str(error)) from None
        split = split_rows(step, found.splits, found.numbers, len(links))
        parts = served_parts(step)
        served = [[each for each in parts if each.master == peer] for peer in range(len(links))]
        return StepExchange(self._decoder, links, split, served, feeding_rows(step, extents, found.numbers))
