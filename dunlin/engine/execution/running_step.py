"""The step that is computed now: its rows, its iteration, and its answer.

Rows may leave it between two pieces of the iteration, or of the log-probabilities of prompts after it. Knows no queue.
"""

from collections.abc import Callable, Container, Sequence
from collections.abc import Set as AbstractSet
from itertools import accumulate

import torch
from torch import Tensor

from dunlin.engine.decoder.decoder import Decoder
from dunlin.engine.decoder.iteration import Iteration, Safepoint
from dunlin.engine.decoder.row_progress import RowProgress
from dunlin.engine.decoder.sampling.sampling import Choices
from dunlin.engine.execution.peers.exchange import ServingIteration, StepExchange
from dunlin.engine.execution.prompt_scores import PromptPart, PromptScorer, PromptScoring
from dunlin.engine.execution.step_batch import SampledRows, StepRow, apply_samples
from dunlin.engine.transfer.transit_rooms import TransitRooms
from dunlin.messages.engine import StepDone
from dunlin.messages.types import PromptScores, f32, i8, i32, i64

_NO_ROWS: frozenset[int] = frozenset()


class RunningStep:
    """Owns an iteration over `layers`; `rows` are numbered as it numbers them. Without rows there is no iteration.
    `scorer` computes log-probabilities of prompt tokens; None: the last layer is not among `layers`.

    `own_rooms`: where peers write for it. `compute_s`: seconds that the engine was in the step; `idle_s`: that it was
    idle before it.
    """

    def __init__(
        self,
        number: int,
        rows: Sequence[StepRow],
        layers: range,
        iteration: Iteration | ServingIteration | None,
        dropped: Sequence[int] = (),
        left: Sequence[int] = (),
        exchange: StepExchange | None = None,
        preemptible: bool = False,
        own_rooms: Sequence[int] = (),
        scorer: PromptScorer | None = None,
    ) -> None:
        self.number = number
        self.layers = layers
        self.compute_s = 0.0
        self.idle_s = 0.0
        self._rows = dict(enumerate(rows))
        self._iteration = iteration
        self._dropped = list(dropped)
        self._left = list(left)
        self._exchange = exchange
        self.own_rooms = own_rooms
        self._leaves_hidden = any(row.hidden_out for row in rows[:1])
        self._is_cut_short = False
        self._scoring: PromptScoring | None = None
        self._stops: dict[int, int] = {}
        self._has_chosen = False
        self._sampled: list[StepRow] = []
        self._choices: Choices | None = None
        self._scores: PromptScores | None = None
        self._unscorable: AbstractSet[int] = _NO_ROWS
        self.can_pause = preemptible or exchange is not None or any(not row.is_decode for row in rows)
        # Decode rows alone, which are many, have no prompt to score: they are not looked at.
        wanted = self.can_pause and any(row.state.unscored(row.start, row.stop) for row in rows)
        self._scorer = scorer if wanted else None

    def __repr__(self) -> str:
        return f"[step: {self.number} | rows: {len(self._rows)} | {self._iteration}]"

    @property
    def rows(self) -> dict[int, StepRow]:
        """The rows that have not left, by number."""
        return self._rows

    @property
    def has_peers(self) -> bool:
        """Whether members of a group step together with it: its rows cannot be resumed alone."""
        return self._exchange is not None

    @property
    def is_serving(self) -> bool:
        """Whether it computes attention for others."""
        return self._exchange is not None and self._exchange.is_serving

    @property
    def is_waiting(self) -> bool:
        """Whether it can go on only when a peer has sent something."""
        return self._iteration is not None and not self._iteration.done and self._iteration.is_waiting

    @property
    def layer(self) -> int:
        """The layer that it stands in: those before it are finished."""
        return self.layers.start if self._iteration is None else self._iteration.layer

    @property
    def done(self) -> bool:
        """Whether nothing is left to compute."""
        return self._iteration is None or (self._iteration.done and not self.is_scoring)

    @property
    def is_scoring(self) -> bool:
        """Whether its layers are computed, and log-probabilities of prompt tokens are not."""
        if self._scorer is None or not isinstance(self._iteration, Iteration):
            return False
        return self._iteration.done and (self._scoring is None or not self._scoring.done)

    def run(self, safepoint: Safepoint, beat: Callable[[], object]) -> None:
        """Compute until it is done, or until a safepoint asks for a pause.

        A step of decode rows alone has no safepoint, unless it is preemptible: it calls `beat` after each layer.
        """
        iteration = self._iteration
        if iteration is None:
            return
        if self.can_pause:
            while not iteration.done:
                iteration.advance()
                if safepoint() or iteration.is_waiting:
                    return
            while self.is_scoring:
                self._score()
                if safepoint():
                    return
        while not iteration.done:
            layer = iteration.layer
            while iteration.layer == layer:
                iteration.advance()
            beat()

    def leave(self, number: int) -> RowProgress:
        """Row `number` leaves; what its sequence had before the step stays valid."""
        assert isinstance(self._iteration, Iteration)
        progress = self._leave_scoring(number) if self._iteration.done else self._iteration.leave(number)
        self._left.append(self._rows.pop(number).sequence)
        if not self._rows and self._exchange is not None and self._exchange.is_serving:
            self._iteration = ServingIteration(self._exchange, range(self._iteration.layer, self.layers.stop))
        return progress

    # --- suspended whole, with peers ---

    @property
    def size_bytes(self) -> int:
        """Of what is computed of its rows, and for others."""
        parts = [each for each in (self._iteration, self._exchange) if each is not None]
        return sum(each.size_bytes for each in parts)

    def set_aside(self, link: int) -> None:
        """It is suspended; another step needs the room of a link."""
        if self._exchange is not None:
            self._exchange.set_aside(link)

    def drop(self, sequence: int) -> None:
        """It is suspended, and the sequence is closed: its row does not go on."""
        for number in [number for number, row in self._rows.items() if row.sequence == sequence]:
            if not self.done:
                self.leave(number)
                self._left.remove(sequence)
            self._dropped.append(sequence)
            self._rows.pop(number, None)
        self._end_if_empty()

    def go_on(self, number: int, dropped: Container[int], left: Container[int]) -> None:
        """It was suspended, and is step `number` now, without the rows of the sequences `dropped` and `left`."""
        self.number, self.compute_s = number, 0.0
        if self._exchange is not None:
            self._exchange.open()
        self.remove(dropped, left)

    def remove(self, dropped: Container[int], left: Container[int]) -> None:
        """Rows of these sequences do not go on; those `left` were interrupted."""
        for row_number, row in list(self._rows.items()):
            if row.sequence in dropped:
                self.drop(row.sequence)
            elif row.sequence in left:
                self.leave(row_number)
        self._end_if_empty()

    def _end_if_empty(self) -> None:
        if not self._rows and not self.is_serving:
            self._iteration = None
            self.give_up()

    def answer_suspended(self) -> StepDone:
        """Its answer when it is suspended: all its rows have left it, and come back in the next."""
        answer = RunningStep(
            self.number, (), self.layers, None, self._dropped,
            [*self._left, *(row.sequence for row in self._rows.values())],
        )  # fmt: skip
        answer.compute_s, answer.idle_s = self.compute_s, self.idle_s
        self._dropped, self._left = [], []
        return answer.answer(SampledRows())

    def stop_serving(self) -> None:
        """Compute nothing for others any more: all own rows leave, too."""
        if self._exchange is not None:
            self._exchange.stop_serving()

    def give_up(self) -> None:
        """It ends before its last layer: no peer need wait for it."""
        if self._exchange is not None:
            self._is_cut_short = True
            self._exchange.give_up()

    def abandon(self) -> SampledRows:
        """All rows leave, and nothing that they computed counts."""
        self.give_up()
        self._left += [row.sequence for row in self._rows.values()]
        self._rows.clear()
        return SampledRows()

    def choose(self, decoder: Decoder, rooms: TransitRooms) -> None:
        """Take in what the rows computed, KV and hidden states, and choose their next tokens: a device may still be at
        it. When the step is done, and once: again it does nothing. `finish` reads the choices.

        :raises TransferError: a room does not hold what it had place for when the step began.
        """
        if self._has_chosen or not isinstance(self._iteration, Iteration) or not self._rows:
            return
        self._has_chosen = True
        if self.layers.stop < len(decoder.kv):
            self._leave_hidden(self._iteration.hidden, rooms)
        if self._scoring is not None:
            self._scores, self._unscorable = self._scoring.finish()
        last, end = [], 0
        for number, row in list(self._rows.items()):
            end = self._stops[number] if self._stops else end + row.tokens
            if row.state.ended:  # by the token that was not read when this step began
                self._dropped.append(self._rows.pop(number).sequence)
                continue
            row.state.valid.set(self.layers, row.valid_stop)
            if row.sample and number not in self._unscorable:
                self._sampled.append(row)
                last.append(end - 1)
        if self._sampled:
            self._choices = self._choose_tokens(self._iteration, decoder, last)
            for row in self._sampled:
                row.state.unread = 1

    def _choose_tokens(self, iteration: Iteration, decoder: Decoder, places: Sequence[int]) -> Choices:
        """Of the sampled rows, whose last tokens are at these `places` of the iteration."""
        if all(row.state.is_greedy for row in self._sampled):
            found = iteration.greatest(places)
            if found is not None:
                return found
        draws = [row.state.next_draw() for row in self._sampled]
        return decoder.numerics.choose(iteration.logits(places), draws)

    def next_tokens(self, following: Sequence[tuple[int, int]]) -> Tensor | None:
        """On the device, the tokens that were chosen of the sequences `following`, each with the position that its
        token has; None where one was not, or peers are to be told first.
        """
        if self._exchange is not None or self._leaves_hidden or self._unscorable:
            return None
        if not following:
            return torch.empty(0, dtype=torch.int64)
        if self._choices is None:
            return None
        places = {(row.sequence, row.stop): place for place, row in enumerate(self._sampled)}
        chosen = [places[each] for each in following if each in places]
        return self._choices.following(chosen) if len(chosen) == len(following) else None

    def finish(self, rooms: TransitRooms) -> SampledRows:
        """Read what was chosen, and let the sequences know.

        :raises TransferError: a room does not hold what it had place for when the step began.
        """
        samples = SampledRows() if self._choices is None else apply_samples(self._sampled, self._choices.read())
        if self._sampled and self._leaves_hidden:
            _leave_tokens(self._sampled, rooms)
        samples.scores = self._scores
        for number in self._unscorable:
            self._rows[number].state.fail()
            samples.failed.append(self._rows[number].sequence)
        return samples

    def _score(self) -> None:
        """Begin to score the prompts' tokens, or score a few more."""
        if self._scoring is None:
            self._scoring = self._begin_scoring()
        else:
            self._scoring.advance()

    def _begin_scoring(self) -> PromptScoring:
        assert self._scorer is not None
        assert isinstance(self._iteration, Iteration)
        parts, end = [], 0
        for number, row in self._rows.items():
            positions = row.state.unscored(row.start, row.stop)
            if positions:
                parts.append(PromptPart(number, row.sequence, row.state, positions, end + positions.start - row.start))
            self._stops[number] = end = end + row.tokens
        return PromptScoring(self._scorer, self._iteration.hidden, parts)

    def _leave_scoring(self, number: int) -> RowProgress:
        """All layers of the row are computed; resumed, it is scored from its first position again."""
        assert isinstance(self._iteration, Iteration)
        if self._scoring is None:
            self._scoring = self._begin_scoring()
        self._scoring.leave(number)
        stop = self._stops[number]
        hidden = self._iteration.hidden[stop - self._rows[number].tokens : stop].clone()
        return RowProgress(self.layers.stop, 0, 0, 0, hidden)

    def _leave_hidden(self, hidden: Tensor, rooms: TransitRooms) -> None:
        rows = list(self._rows.values())
        stops = list(accumulate(row.tokens for row in rows))
        contents = [hidden[stop - row.tokens : stop] for row, stop in zip(rows, stops, strict=True)]
        rooms.put(rows[0].hidden_out, [row.name for row in rows], contents)

    def answer(self, samples: SampledRows) -> StepDone:
        """The step's answer."""
        rows, choices = self._rows.values(), samples.choices
        decode_rows = sum(row.is_decode for row in rows) if self.can_pause else len(rows)
        top = [pair for choice in choices for pair in choice.top]
        return StepDone(
            step=self.number,
            sequence=i64(samples.sequences),
            token=i32([choice.token for choice in choices]),
            logprob=f32([choice.logprob for choice in choices]),
            finish=i8([int(finish) for finish in samples.finishes]),
            dropped=i64(self._dropped),
            top_count=i32([len(choice.top) for choice in choices]) if top else i32(),
            top_token=i32([token for token, _ in top]),
            top_logprob=f32([logprob for _, logprob in top]),
            prefill_rows=len(rows) - decode_rows,
            decode_rows=decode_rows,
            tokens_computed=sum(row.tokens for row in rows),
            compute_s=self.compute_s,
            idle_s=self.idle_s,
            failed=i64(samples.failed),
            left=i64(self._left),
            cut_short=self._is_cut_short,
            scores=samples.scores,
        )


def _leave_tokens(sampled: Sequence[StepRow], rooms: TransitRooms) -> None:
    """The last stage of a pipeline tells the first what it sampled."""
    told = [(row.sequence, row.state.tokens) for row in sampled if len(row.state.tokens) > row.stop]
    rows = [(sequence, range(len(tokens) - 1, len(tokens))) for sequence, tokens in told]
    rooms.put(sampled[0].hidden_out, rows, [torch.tensor([tokens[-1]]) for _, tokens in told])
