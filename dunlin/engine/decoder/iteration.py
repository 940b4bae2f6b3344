"""One pass of a batch over a range of layers, as a machine over (layer, phase, piece).

`advance` computes one bounded piece. Between two pieces rows may leave, each with what was computed of it, and go on in
another iteration where they stood: nothing of a row is computed twice. Knows no sequence and no step.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import IntEnum

import torch
from torch import Tensor

from dunlin.engine.attention.base import AttentionKind, AttentionPass, AttentionPlan
from dunlin.engine.decoder.decoder import Decoder, DecoderBatch
from dunlin.engine.decoder.host_copies import rows_at, to_device
from dunlin.engine.decoder.layer_exchange import LayerExchange
from dunlin.engine.decoder.layer_segments import BeginSegments, LayerSegments
from dunlin.engine.decoder.linear_queue import LinearQueue
from dunlin.engine.decoder.linear_work import LinearWork
from dunlin.engine.decoder.piece_sizes import MOST, Linear, PieceSizes
from dunlin.engine.decoder.row_progress import RowProgress, WorkCount
from dunlin.engine.decoder.sampling.sampling import Choices

Safepoint = Callable[[], object]
"""Called between pieces; what it returns that is true asks for the computation to pause."""


class Phase(IntEnum):
    """The phases of a layer: queries, keys and values of all tokens; attention; output projection and MLP."""

    PROJECT = 0
    ATTEND = 1
    FINISH = 2


class Iteration:
    """Owns a batch's hidden states while they pass the layers.

    `hidden`: the states after the layer before `layers`, packed like the batch; embedded if there is none. `resumed`:
    where every row stands, all in one layer. `sizes`: how linear work is cut; None if nothing can interrupt it.
    `exchange`: what brings the keys that rows await; `is_waiting`: the last `advance` found nothing to do but wait.
    `begin_segments`: computes several layers in one piece where it can; once a row leaves, the others go on without.
    """

    def __init__(
        self,
        decoder: Decoder,
        batch: DecoderBatch,
        layers: range,
        sizes: PieceSizes | None = None,
        hidden: Tensor | None = None,
        resumed: Sequence[RowProgress] = (),
        count: WorkCount | None = None,
        exchange: LayerExchange | None = None,
        begin_segments: BeginSegments | None = None,
    ) -> None:
        self.is_waiting = False
        self._exchange = exchange
        self.layer = resumed[0].layer if resumed else layers.start
        self.phase = Phase.PROJECT
        batch = batch.to(decoder.device)
        self._decoder = decoder
        self._layer_stop = layers.stop
        self._sizes = sizes
        self._count = count or WorkCount()
        self._rows = batch.rows
        self._numbers: Sequence[int] = range(len(batch.rows))
        self._left: set[int] = set()
        self._slots = batch.slots
        self._positions = batch.positions
        self._adapters = batch.adapters
        self._plans: dict[AttentionKind, AttentionPlan] = {}
        self._resumed = dict(enumerate(resumed))
        self._query: Tensor | None = None
        self._pass: AttentionPass | None = None
        self._mixed: Tensor | None = None
        self._linear = LinearQueue()
        is_whole = not resumed and exchange is None
        self._segments = begin_segments(batch, hidden) if begin_segments is not None and is_whole else None
        self._hidden = self._turn = torch.empty(0)
        if self._segments is None:
            if hidden is None:
                hidden = _joined(resumed) if resumed else decoder.embed(batch.tokens)
            self._take_hidden(hidden)
            self._begin_project()

    def __repr__(self) -> str:
        return f"[layer: {self.layer} | phase: {self.phase.name} | rows: {len(self._rows) - len(self._left)}]"

    @property
    def size_bytes(self) -> int:
        """Of what it holds of its rows; what is begun of a block's products counts as nothing."""
        tensors = [each for each in (self.hidden, self._turn, self._query, self._mixed) if each is not None]
        return sum(tensor.nbytes for tensor in tensors) + (0 if self._pass is None else self._pass.size_bytes)

    @property
    def done(self) -> bool:
        """Whether every row that has not left has passed the layers."""
        return self.layer >= self._layer_stop

    def advance(self) -> None:
        """Compute one piece."""
        if self._segments is not None:
            self._compute_segment(self._segments)
        elif self.phase is Phase.PROJECT:
            self._project()
        elif self.phase is Phase.ATTEND:
            self._attend()
        else:
            self._finish()

    def leave(self, number: int) -> RowProgress:
        """Take row `number` of the batch out; the other rows' results do not change.

        :raises ValueError: it has left already, or the iteration is done.
        """
        at = self._numbers.index(number) if number in self._numbers else -1
        if at < 0 or at in self._left or self.done:
            raise ValueError(f"row {number} is not under way: {self}")
        segments, self._segments = self._segments, None
        if segments is not None:
            self._take_hidden(segments.hidden.clone())
            self._begin_project()
        progress = self._progress(at)
        self._left.add(at)
        if self._exchange is not None:
            self._exchange.leave(number)
        row = self._rows[at]
        self._linear.forget(row.start, row.stop)
        self._skip_empty_phase()
        return progress

    @property
    def hidden(self) -> Tensor:
        """The hidden states of the rows that are left, `[tokens, hidden]`, packed in the order of the batch."""
        return self._hidden if self._segments is None else self._segments.hidden

    def logits(self, places: Sequence[int]) -> Tensor:
        """After the model's last layer, the logits `[places, vocabulary]` fp32 of the tokens at these `places`."""
        found = None if self._segments is None else self._segments.logits(places)
        return self._decoder.logits(rows_at(self.hidden, places)) if found is None else found

    def greatest(self, places: Sequence[int]) -> Choices | None:
        """The tokens of the greatest of these logits, where the layers' segments choose them."""
        return None if self._segments is None else self._segments.greatest(places)

    # --- phases ---

    def _take_hidden(self, hidden: Tensor) -> None:
        """Go on without segments."""
        self._hidden, self._turn = hidden, self._decoder.angles(self._positions)

    def _compute_segment(self, segments: LayerSegments) -> None:
        before = self.layer
        self.layer = segments.run(before, self._layer_stop)
        self._count.projected += len(self._slots) * (self.layer - before)
        self._count.finished += len(self._slots) * (self.layer - before)

    def _begin_project(self) -> None:
        """Begin a layer: with all tokens, but for those of resumed rows that have their queries already."""
        self.phase, self._pass, self._mixed, self._query = Phase.PROJECT, None, None, None
        if not self._resumed:
            self._linear = LinearQueue([(0, len(self._slots))])
            return
        self._take_up(Linear.PROJECT, {at: progress.projected for at, progress in self._resumed.items()})
        config = self._decoder.config
        self._query = self._hidden.new_empty(len(self._slots), config.heads, config.head_dim)
        for at, progress in self._resumed.items():
            known = progress.attention.query if progress.attention is not None else progress.query
            if known is not None:
                start = self._rows[at].start
                self._query[start : start + len(known)] = known
        self._skip_empty_phase()

    def _project(self) -> None:
        computed = self._compute_linear(Linear.PROJECT)
        if computed is not None:
            start, query = computed
            self._query = _put(self._query, query, start, len(self._slots))
            self._count.projected += len(query)
            self._skip_empty_phase()

    def _attend(self) -> None:
        if self._exchange is not None:
            self._attend_with_peers(self._exchange)
        elif self._attention.done:  # a piece without work would let a row leave and come back for ever
            self._begin_finish()
            self._finish()
        elif not self._attention.advance():
            self._begin_finish()

    def _attend_with_peers(self, exchange: LayerExchange) -> None:
        attention = self._attention
        worked = exchange.advance()
        # Others' queries first: their answers are on their way while the own keys are attended to.
        is_ready = exchange.is_computing or attention.advance()
        self.is_waiting = not worked and not is_ready
        if attention.done and exchange.done:
            self.is_waiting = False
            self._begin_finish()

    def _begin_finish(self) -> None:
        self._mixed, _ = self._attention.result()
        self.phase = Phase.FINISH
        if not self._left and not self._resumed:  # no look at the rows: there may be many
            self._linear = LinearQueue([(0, len(self._slots))])
            return
        kept = [at for at in range(len(self._rows)) if at not in self._left]
        self._take_up(Linear.FINISH, {at: self._finished_before(at) for at in kept})
        self._resumed = {}

    def _finish(self) -> None:
        computed = self._compute_linear(Linear.FINISH)
        if computed is not None:
            start, hidden = computed
            self._hidden = _put(self._hidden, hidden, start, len(self._slots))
            self._count.finished += len(hidden)
            self._skip_empty_phase()

    def _skip_empty_phase(self) -> None:
        """Go on to the next phase where no linear work is left in this one."""
        if self._linear or len(self._left) == len(self._rows):
            return
        if self.phase is Phase.PROJECT:
            self.phase = Phase.ATTEND
        elif self.phase is Phase.FINISH:
            self.layer += 1
            if self._left:
                self._compact()
            self._begin_project()

    @property
    def _attention(self) -> AttentionPass:
        """The layer's attention, begun when it is first needed."""
        if self._pass is None:
            assert self._query is not None
            states = {at: each.attention for at, each in self._resumed.items() if each.attention is not None}
            self._pass = self._plan().start(self._query, self._decoder.kv[self.layer], states)
            for at in self._left:
                self._pass.leave(at)
            if self._exchange is not None:
                rows = dict(zip(self._numbers, self._rows, strict=True))
                self._exchange.begin(self.layer, self._query, self._pass, rows)
            self._query = None
        return self._pass

    def _plan(self) -> AttentionPlan:
        """The rows, planned for the layer."""
        kind = self._decoder.attention_kind(self.layer)
        plan = self._plans.get(kind)
        if plan is None:
            plan = self._plans[kind] = self._decoder.numerics.attention.plan(self._rows, kind)
        return plan

    # --- linear work ---

    def _take_up(self, stretch: Linear, done: Mapping[int, int]) -> None:
        """Begin a stretch with rows of which so many tokens are done already, and of some more was begun."""
        spans, begun = [], []
        for at, tokens in done.items():
            row, progress = self._rows[at], self._resumed.get(at)
            first = row.start + tokens
            if progress is not None and progress.begun is not None and progress.begun_stretch is stretch:
                begun.append(progress.begun.part(tokens, progress.begun.stop, -row.start))
                first = begun[-1].stop
            spans.append((first, row.stop))
        self._linear = LinearQueue(spans, begun)

    def _compute_linear(self, stretch: Linear) -> tuple[int, Tensor] | None:
        """Compute a piece; (first token, result) of the block that is done by it, None where none is."""
        sizes, begun = self._sizes, self._linear.begun
        if sizes is None:
            return self._compute_block(stretch)
        began_s = sizes.clock()
        if not begun:
            start, stop = self._linear.take(sizes.rows(stretch))
            if sizes.share(stretch, stop - start) >= 1:
                result = self._whole(stretch, start, stop)
                sizes.learn(stretch, stop - start, sizes.clock() - began_s)
                return start, result
            begun.append(self._begin(stretch, start, stop))
        work = begun[0]
        work.advance(sizes.share(stretch, work.stop - work.start), sizes.least_columns or MOST)
        done = self._end(stretch, begun.popleft()) if work.done else None
        if work.took_s is not None:
            work.took_s += sizes.clock() - began_s
            if done is not None:
                sizes.learn(stretch, work.stop - work.start, work.took_s)
        return done

    def _compute_block(self, stretch: Linear) -> tuple[int, Tensor]:
        """All that is begun, or all of the next span."""
        if not self._linear.begun:
            start, stop = self._linear.take()
            return start, self._whole(stretch, start, stop)
        work = self._linear.begun.popleft()
        while not work.done:
            work.advance(1.0, MOST)
        return self._end(stretch, work)

    def _whole(self, stretch: Linear, start: int, stop: int) -> Tensor:
        adapters = self._adapters_of(start, stop)
        if stretch is Linear.PROJECT:
            parts = self._hidden[start:stop], self._turn[start:stop], self._slots[start:stop]
            return self._decoder.project(self.layer, *parts, adapters)
        assert self._mixed is not None
        return self._decoder.finish(self.layer, self._hidden[start:stop], self._mixed[start:stop], adapters)

    def _begin(self, stretch: Linear, start: int, stop: int) -> LinearWork:
        hidden, adapters = self._hidden[start:stop], self._adapters_of(start, stop)
        if stretch is Linear.PROJECT:
            return self._decoder.begin_project(self.layer, start, stop, hidden, adapters)
        assert self._mixed is not None
        return self._decoder.begin_finish(self.layer, start, stop, hidden, self._mixed[start:stop], adapters)

    def _adapters_of(self, start: int, stop: int) -> Tensor | None:
        return None if self._adapters is None else self._adapters[start:stop]

    def _end(self, stretch: Linear, work: LinearWork) -> tuple[int, Tensor]:
        """(first token, result) of work whose products are done."""
        if stretch is Linear.FINISH:
            return work.start, work.result
        turn, slots = self._turn[work.start : work.stop], self._slots[work.start : work.stop]
        return work.start, self._decoder.put_projected(self.layer, work.result, turn, slots)

    # --- rows ---

    def _finished_before(self, at: int) -> int:
        return self._resumed[at].finished if at in self._resumed else 0

    def _progress(self, at: int) -> RowProgress:
        row, begun = self._rows[at], self._begun_of(at)
        ready = row.tokens - self._linear.left(row.start, row.stop)
        hidden = self._kept(self._hidden[row.start : row.stop])
        if self.phase is Phase.PROJECT and not ready:
            return RowProgress(self.layer, 0, 0, 0, hidden, begun=begun)
        if self.phase is Phase.FINISH and ready == row.tokens:  # ahead of the other rows
            return RowProgress(self.layer + 1, 0, 0, 0, hidden)
        before = self._resumed.get(at)
        if self.phase is Phase.PROJECT or (self._pass is None and (before is None or before.attention is None)):
            assert self._query is not None
            projected = ready if self.phase is Phase.PROJECT else row.tokens
            query = self._kept(self._query[row.start : row.start + projected])
            return RowProgress(self.layer, 0, projected, 0, hidden, query, begun=begun)
        state = self._attention.leave(at)
        finished = ready if self.phase is Phase.FINISH else self._finished_before(at)
        block = sum(state.progress.values())
        return RowProgress(self.layer, block, row.tokens, finished, hidden, attention=state, begun=begun)

    def _kept(self, part: Tensor) -> Tensor:
        """A row's part of a tensor, to be kept: the very part where no other row goes on with that tensor. Of a long
        prompt it is hundreds of megabytes, and an interrupt waits for what is asked of the allocator.
        """
        return part if len(self._rows) == 1 else part.clone()

    def _begun_of(self, at: int) -> LinearWork | None:
        """What was begun of a row's tokens: in this phase, or after attention by an iteration that it left."""
        row, before = self._rows[at], self._resumed.get(at)
        begun = self._linear.begun_of(row.start, row.stop)
        if begun is None and before is not None and before.begun_stretch is Linear.FINISH:
            return before.begun
        return begun

    def _compact(self) -> None:
        """Pack the rows that are still there."""
        kept = [at for at in range(len(self._rows)) if at not in self._left]
        index = torch.cat([torch.arange(self._rows[at].start, self._rows[at].stop) for at in kept])
        self._adapters = None if self._adapters is None else self._adapters.index_select(0, index)
        index = to_device(index, self._hidden.device)
        self._hidden, self._turn = self._hidden.index_select(0, index), self._turn.index_select(0, index)
        self._slots, self._positions = self._slots.index_select(0, index), self._positions.index_select(0, index)
        rows, end = [], 0
        for at in kept:
            row = self._rows[at]
            rows.append(replace(row, start=end, stop=end + row.stop - row.start))
            end = rows[-1].stop
        self._rows, self._numbers, self._left = rows, [self._numbers[at] for at in kept], set()
        self._plans = {}


@torch.inference_mode()
def forward(decoder: Decoder, batch: DecoderBatch, safepoint: Safepoint = lambda: None) -> Tensor:
    """Compute the batch through the layers held, with a safepoint after each piece. Logits `[samples, vocab]`."""
    hidden = None
    batch = batch.to(decoder.device)
    for layers in decoder.held_runs:
        iteration = Iteration(decoder, batch, layers, hidden=hidden)
        while not iteration.done:
            iteration.advance()
            safepoint()
        hidden = iteration.hidden
    assert hidden is not None
    return decoder.logits(hidden.index_select(0, batch.sampled))


def _joined(resumed: Sequence[RowProgress]) -> Tensor:
    return torch.cat([each.hidden for each in resumed])


def _put(whole: Tensor | None, part: Tensor, start: int, tokens: int) -> Tensor:
    """`whole` with `part` at `start`; the very part if that is all there is."""
    if len(part) == tokens:
        return part
    if whole is None:
        whole = part.new_empty(tokens, *part.shape[1:])
    into = whole[start : start + len(part)]
    if into.data_ptr() != part.data_ptr():  # else it was computed in its place
        into.copy_(part)
    return whole
