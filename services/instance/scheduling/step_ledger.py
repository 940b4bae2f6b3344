"""The ledger of steps: which rows the engine has not answered, which left their step, which are parked.

A *group step* is of a group: no sequence of this instance has a row in it, it is only outstanding like the others.
Per sequence it keeps what was *issued* (named by outstanding or parked rows) apart from what is *valid* (KV that
exists): `Sequence.issued` advances when a row is sent, `Sequence.valid` when it is answered, and a row that leaves its
step rolls `issued` back to its start, once, in whichever order the answers tell of it. A step's way: outstanding until
`StepDone`; a row's: outstanding → parked → outstanding under a new step number. Parked rows are not outstanding.
Knows no policy, no slot and no dispatcher.
"""

from collections.abc import Collection, Iterable

from dunlin.effects import Address, Effect, Send
from dunlin.messages.engine import Discard, Interrupt, Interrupted, Resume, StepDone
from dunlin.messages.types import Verdict, Why, i64
from services.instance.scheduling.step_forecast import StepForecast
from services.instance.scheduling.step_outcome import StepOutcome, StepTotals, is_steady, settle, settle_steady
from services.instance.scheduling.step_rows import LedgerRow, StepRows, of_rows
from services.instance.sequence.sequence import Sequence
from services.instance.sequence.states import SequenceState
from services.instance.sequence.table import SequenceTable

MAX_OUTSTANDING_STEPS = 2
"""So that the engine finds the next step queued when it answers one."""


class StepLedger:
    """Owns the outstanding steps by number, the parked rows by sequence, and the interrupts that have no answer.

    A sequence that an unanswered interrupt names is *held*: it gets no new row, because where its KV ends is
    not known yet. `forecast` knows when the outstanding steps will be done, if anything predicts the engine's times.
    """

    def __init__(self, engine: Address, sequences: SequenceTable, forecast: StepForecast | None = None) -> None:
        self.totals = StepTotals()
        self.forecast = forecast or StepForecast()
        self._engine = engine
        self._sequences = sequences
        self._outstanding: dict[int, StepRows] = {}
        self._parked: dict[Sequence, LedgerRow] = {}
        self._group_steps: set[int] = set()
        self._interrupts: dict[int, list[Sequence]] = {}
        # Rows that left by the word of `StepDone`, by (step, number), until `Interrupted` says whether they are parked.
        self._undecided: dict[tuple[int, int], LedgerRow] = {}
        self._recalls: set[int] = set()
        self._last_step = 0
        self._last_ticket = 0

    @property
    def outstanding(self) -> int:
        """Steps sent and not answered."""
        return len(self._outstanding)

    @property
    def unanswered(self) -> int:
        """Steps and interrupts sent and not answered: while there are any, the engine has something to do."""
        return len(self._outstanding) + len(self._interrupts)

    @property
    def oldest_step(self) -> int:
        """The number of the outstanding step that the engine computes first; 0: none is outstanding."""
        return next(iter(self._outstanding), 0)

    @property
    def last_step(self) -> int:
        """The number of the newest step."""
        return self._last_step

    @property
    def is_recalling(self) -> bool:
        """Whether a step is being taken back: its rows, which nothing speaks against, are held for this moment only."""
        return bool(self._recalls)

    def is_outstanding(self, step: int) -> bool:
        """Whether that step is outstanding."""
        return step in self._outstanding

    def is_parked(self, sequence: Sequence) -> bool:
        """Whether the engine keeps a row of it that left its step."""
        return sequence in self._parked

    def is_held(self, sequence: Sequence) -> bool:
        """Whether an unanswered interrupt names it."""
        return any(sequence in named for named in self._interrupts.values())

    def without_held(self, running: list[Sequence]) -> list[Sequence]:
        """The sequences that may get a row; the same list if none is held."""
        if not self._interrupts:
            return running
        return [sequence for sequence in running if not self.is_held(sequence)]

    def executing_rows(self) -> list[tuple[Sequence, int]]:
        """(sequence, stop of its row) of the oldest step with rows, which the engine computes or did when it ended;
        none while that is a step of a group.
        """
        for number, rows in self._outstanding.items():
            if number in self._group_steps:
                break
            if rows.sequences:
                return list(zip(rows.sequences, rows.stops, strict=True))
        return []

    def outstanding_rows(self) -> list[LedgerRow]:
        """The oldest outstanding row of each sequence, in the order of the engine's queue."""
        found: dict[Sequence, LedgerRow] = {}
        for number, rows in self._outstanding.items():
            for row in rows.rows(number):
                found.setdefault(row.sequence, row)
        return list(found.values())

    def steps_with(self, sequence: Sequence) -> list[int]:
        """The outstanding steps that have a row of it, oldest first."""
        return [number for number, rows in self._outstanding.items() if sequence in rows.sequences]

    def parked_rows(self) -> list[LedgerRow]:
        """The parked rows, in the order in which they were parked."""
        return list(self._parked.values())

    def clear(self) -> None:
        """The engine is gone, with its queue and its parked rows: none will be answered."""
        for mine in (self._outstanding, self._parked, self._interrupts, self._undecided, self.forecast):
            mine.clear()
        self._group_steps.clear()
        self._recalls.clear()

    # --- steps ---

    def add(self, rows: StepRows) -> int:
        """Enter a step that is about to be sent; its number."""
        self._last_step += 1
        self._outstanding[self._last_step] = rows
        return self._last_step

    def complete(self, done: StepDone) -> StepOutcome:
        """What the answer says; the sequences' counters and tokens are up to date afterwards.

        Raises:
            KeyError: that step is not outstanding.
        """
        rows = self._outstanding.pop(done.step)
        self.totals.count(done)
        if is_steady(rows, done):
            return settle_steady(rows, done)
        if not done.left:
            return settle(rows, done)
        rows, left = rows.split(done.step, set(done.left))
        for row in left:
            self._undecided[row.step, row.number] = row
        answer = settle(rows, done)
        answer.left = self._settle_undecided()
        answer.rows = answer.rows + answer.left
        return answer

    def refuse(self, step: int) -> list[Sequence]:
        """The engine refused an outstanding step and did nothing of it: the sequences whose rows are rolled back.

        Raises:
            KeyError: that step is not outstanding.
        """
        rows = self._outstanding.pop(step).rows(step)
        for row in rows:
            self._roll_back(row)
        return [row.sequence for row in rows]

    # --- steps of a group ---

    @property
    def has_room(self) -> bool:
        """Whether the engine's queue may get another step."""
        return self.outstanding < MAX_OUTSTANDING_STEPS

    def add_group_step(self, now_s: float) -> int:
        """Enter a step of a group that is about to be sent; its number."""
        number = self.add(of_rows([]))
        self._group_steps.add(number)
        self.forecast.on_group_step_sent(now_s, number)
        return number

    def is_group_step(self, step: int) -> bool:
        """Whether that step is outstanding, and a group's."""
        return step in self._group_steps

    def complete_group_step(self, now_s: float, done: StepDone) -> None:
        """A group's step was answered.

        Raises:
            KeyError: none of that number is outstanding.
        """
        self.refuse_group_step(done.step)
        self.forecast.on_done(now_s, done)
        self.totals.count(done)

    def refuse_group_step(self, step: int) -> None:
        """The engine refused a group's step. Raises KeyError as `complete_group_step`."""
        self._group_steps.remove(step)
        del self._outstanding[step]

    def probe(self) -> Effect:
        """An interrupt of no sequence: as long as it is not answered, the engine's watch counts it as outstanding."""
        return Send(self._engine, Interrupt(Verdict.DISCARD, i64([0]), ticket=self._new_ticket([])))

    def interrupt_group_step(self, step: int, why: Why) -> list[Effect]:
        """Have all rows of an outstanding group's step leave it, and let it serve no peer any more."""
        return [Send(self._engine, Interrupt(Verdict.DISCARD, why=why, ticket=self._new_ticket([]), step=step))]

    # --- rows that leave, and come back ---

    def interrupt(self, sequences: Iterable[Sequence], verdict: Verdict, why: Why | None = None) -> list[Effect]:
        """Have the outstanding rows of the sequences leave their steps; nothing where there are none.

        SUSPEND parks the row of the running step. The sequences are held until the engine has answered.
        """
        named = [sequence for sequence in sequences if sequence.in_steps > 0]
        if not named:
            return []
        numbers = i64([sequence.number for sequence in named])
        return [Send(self._engine, Interrupt(verdict, numbers, why, self._new_ticket(named), self._last_step))]

    def queued_batch_step(self) -> int:
        """The number of the oldest step behind the running one, if it has rows of batch work; else 0."""
        for number in list(self._outstanding)[1:2]:
            if any(sequence.is_batch for sequence in self._outstanding[number].sequences):
                return number
        return 0

    def recall(self, step: int, leaving: Collection[Sequence], why: Why | None = None) -> list[Effect]:
        """Have all rows of an outstanding step leave it: it is answered without any. The sequences are held until the
        engine has answered. Nothing to do where all its rows are of sequences that are `leaving` every step.
        """
        named = self._outstanding[step].sequences if step in self._outstanding else []
        if all(sequence in leaving for sequence in named):
            return []
        ticket = self._new_ticket(list(named))
        self._recalls.add(ticket)
        return [Send(self._engine, Interrupt(Verdict.DISCARD, why=why, ticket=ticket, step=step))]

    def is_interrupt(self, ticket: int) -> bool:
        """Whether an interrupt with that ticket has no answer yet."""
        return ticket in self._interrupts

    def on_interrupted(self, message: Interrupted) -> list[Sequence]:
        """Take the rows that left out of their steps; returns the sequences that were held or have left a step.

        Raises:
            KeyError: no interrupt with that ticket is unanswered.
        """
        touched = dict.fromkeys(self._interrupts.pop(message.ticket))
        self._recalls.discard(message.ticket)
        left: dict[int, dict[int, tuple[int, int, int]]] = {}
        columns = zip(message.step, message.sequence, message.parked, message.layer, message.block, strict=True)
        for step, number, parked, layer, block in columns:
            left.setdefault(step, {})[number] = parked, layer, block
        for step, places in left.items():
            if step in self._group_steps:
                continue  # its own answer says so
            for row in self._take(step, places):
                is_parked, row.layer, row.block = places[row.number]
                if is_parked:
                    self._park(row)
                else:
                    self._roll_back(row)
                touched[row.sequence] = None
        touched |= dict.fromkeys(self._settle_undecided())
        return list(touched)

    def resume(self, sequences: Iterable[Sequence], why: Why | None = None) -> list[Effect]:
        """Queue the parked rows of the sequences again: those at one place of their layers as one step.

        Those for whose step the engine's queue has no room stay parked.
        """
        groups: dict[tuple[int, int, int], list[LedgerRow]] = {}
        for sequence in sequences:
            row = self._parked.get(sequence)
            if row is not None:
                alone = row.number if sequence.trial_stop else 0
                groups.setdefault((row.layer, row.block, alone), []).append(row)
        room = MAX_OUTSTANDING_STEPS - self.outstanding
        return [self._resume_together(rows, why) for rows in list(groups.values())[: max(0, room)]]

    def discard(self, sequences: Iterable[Sequence]) -> list[Effect]:
        """Forget the parked rows of the sequences, here and in the engine: they go on from their valid KV."""
        rows = [row for sequence in sequences if (row := self.forget(sequence)) is not None]
        for row in rows:
            if row.sequence.state is SequenceState.PARKED:
                self._sequences.transition(row.sequence, SequenceState.RUNNING)
        return [Send(self._engine, Discard(i64([row.number for row in rows])))] if rows else []

    def forget(self, sequence: Sequence) -> LedgerRow | None:
        """Forget its parked row here alone: the engine forgets it with the sequence. None: it has none."""
        row = self._parked.pop(sequence, None)
        if row is not None:
            row.roll_back()
        return row

    def _resume_together(self, rows: list[LedgerRow], why: Why | None) -> Effect:
        for row in rows:
            del self._parked[row.sequence]
            row.sequence.in_steps += 1
            self._sequences.transition(row.sequence, SequenceState.RUNNING)
        step = self.add(of_rows(rows))
        return Send(self._engine, Resume(step, i64([row.number for row in rows]), why=why))

    def _new_ticket(self, named: list[Sequence]) -> int:
        """The ticket of an interrupt that is about to be sent, which holds these sequences until it is answered."""
        self._last_ticket += 1
        self._interrupts[self._last_ticket] = named
        return self._last_ticket

    def _take(self, step: int, numbers: Iterable[int]) -> list[LedgerRow]:
        """Take the rows of these sequences out of their step; rows that left it before are not found again."""
        if step not in self._outstanding:
            return [row for number in numbers if (row := self._undecided.pop((step, number), None)) is not None]
        self._outstanding[step], left = self._outstanding[step].split(step, set(numbers))
        return left

    def _settle_undecided(self) -> list[Sequence]:
        """Roll back the rows that left and that no unanswered interrupt names; their sequences."""
        rows = [row for row in self._undecided.values() if not self.is_held(row.sequence)]
        for row in rows:
            del self._undecided[row.step, row.number]
            self._roll_back(row)
        return [row.sequence for row in rows]

    def _park(self, row: LedgerRow) -> None:
        row.sequence.in_steps -= 1
        self._parked[row.sequence] = row

    def _roll_back(self, row: LedgerRow) -> None:
        row.sequence.in_steps -= 1
        row.roll_back()
        self._sequences.changed()
