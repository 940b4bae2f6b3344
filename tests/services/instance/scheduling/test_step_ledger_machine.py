"""Steps, interrupts, resumes, discards, cancels and crashes in any order, with answers let through in any portions.

Whatever happens, each row is counted once, no KV is read that is not there, no token is wrong, repeated or missing, no
slot is lost and every attempt comes to its end (see `ledger_bench.py`).
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from dunlin.messages.types import FinishReason, Verdict
from services.instance.sequence.sequence import Sequence
from services.instance.sequence.states import SequenceState
from tests.services.instance.scheduling.ledger_bench import LedgerBench

SOME = st.integers(0, 7)


class LedgerMachine(RuleBasedStateMachine):
    """Drives one bench."""

    @initialize(
        budget=st.sampled_from([4, 8, 24]),
        slots=st.sampled_from([80, 112, 256]),
        room=st.sampled_from([0, 1, 99, 99]),
        dones_first=st.booleans(),
        crashes=st.sampled_from([0, 0, 1, 2]),
    )
    def begin(self, budget: int, slots: int, room: int, dones_first: bool, crashes: int) -> None:
        self.bench = LedgerBench(
            slots=slots, scheduler__budget_tokens=budget, scheduler__max_running=5, scheduler__allocate_ahead_tokens=4
        )
        self.room, self.dones_first, self.crashes = room, dones_first, crashes
        self.requests = 0
        self.is_down = False
        self._set_up()

    def _set_up(self) -> None:
        self.bench.engine.room, self.bench.engine.dones_first = self.room, self.dones_first

    @rule(sizes=st.lists(st.tuples(st.integers(1, 60), st.integers(1, 8)), min_size=1, max_size=4))
    def place(self, sizes: list[tuple[int, int]]) -> None:
        if not self.is_down:
            self._place_at_once(sizes)

    def _place_at_once(self, sizes: list[tuple[int, int]]) -> None:
        for tokens, max_tokens in sizes:
            self.requests += 1
            self.bench.place(self.requests, tokens=tokens, max_tokens=max_tokens)

    @rule(some=SOME)
    def cancel(self, some: int) -> None:
        if some < self.requests:
            self.bench.cancel(self.requests - some)

    @rule(count=st.integers(1, 4))
    def let_commands(self, count: int) -> None:
        self.bench.let_commands(count)

    @rule(count=st.integers(1, 3))
    def let_events(self, count: int) -> None:
        self.bench.let_events(count)

    @rule(count=st.sampled_from([1, 1, 2, 6]))
    def tick(self, count: int) -> None:
        self.bench.tick(count)

    @rule(count=st.integers(1, 5))
    def go_on(self, count: int) -> None:
        for _ in range(count):
            self.bench.let_commands()
            self.bench.tick()
            self.bench.let_events()

    @rule(some=st.integers(1, 255), verdict=st.sampled_from(Verdict))
    def interrupt(self, some: int, verdict: Verdict) -> None:
        """Any that have rows: held ones and ones on their way out, too."""
        self.bench.interrupt(self._some(some, self.bench.sequences), verdict)

    @rule()
    def recall(self) -> None:
        self.bench.recall()

    @rule(
        some=st.integers(1, 255),
        verdict=st.sampled_from([Verdict.SUSPEND, Verdict.SUSPEND, Verdict.DISCARD]),
        ticks=st.integers(0, 4),
        heard=st.sampled_from([0, 1, 2, 3, 99]),
        then=st.sampled_from(["", "", "resume", "discard", "cancel"]),
    )
    def interrupt_in_the_middle(self, some: int, verdict: Verdict, ticks: int, heard: int, then: str) -> None:
        """Of a step that has passed `ticks` safepoints; the core hears the first `heard` words of the answer."""
        if self.is_down:
            return
        self._place_at_once([(60, 2), (9, 3)][: max(0, 4 - len(self.bench.core.sequences))])
        self.bench.let_commands()
        self.bench.tick(ticks)
        self.bench.interrupt(self._some(some, self.bench.core.sequences.running), verdict)
        self.bench.let_commands()
        self.bench.tick()
        self.bench.let_events(heard)
        for sequence in self.bench.core.sequences.parked() if then else []:
            if then == "cancel":
                self.bench.cancel(sequence.place.request)
            else:
                getattr(self.bench, then)([sequence])

    @rule(some=st.integers(1, 255))
    def resume(self, some: int) -> None:
        self.bench.resume(self._some(some, self.bench.core.sequences.parked()))

    @rule(some=st.integers(1, 255))
    def discard(self, some: int) -> None:
        self.bench.discard(self._some(some, self.bench.core.sequences.parked()))

    @precondition(lambda self: self.crashes and not self.is_down)
    @rule(signal=st.sampled_from([9, 9, 11]))
    def crash(self, signal: int) -> None:
        self.crashes -= 1
        self.is_down = True
        self.bench.crash(signal)

    @precondition(lambda self: self.is_down)
    @rule()
    def come_back(self) -> None:
        self.bench.start_engine()
        self._set_up()
        self.is_down = False

    @precondition(lambda self: self.bench.late and not self.is_down)
    @rule()
    def hear_late_words(self) -> None:
        stale = self.bench.core.report().stale_total
        late, self.bench.late = self.bench.late, []
        for sender, message in late:
            assert self.bench.give(sender, message) == []
        assert self.bench.core.report().stale_total == stale + len(late)

    def teardown(self) -> None:
        if not hasattr(self, "bench"):
            return
        if self.is_down:
            self.come_back()
        self.bench.finish()
        for attempt in self.bench.dispatcher.attempts.values():
            assert attempt.is_over, f"{attempt.place} was never ended: {attempt.heard}"
            assert attempt.finish is FinishReason.RUNNING or attempt.tokens == attempt.expected

    def _some(self, some: int, sequences: list[Sequence]) -> list[Sequence]:
        """Those whose bit in `some` is set."""
        alive = [sequence for sequence in sequences if sequence.state is not SequenceState.ENDED]
        return [sequence for index, sequence in enumerate(alive) if some >> (index % 8) & 1]


TestLedgerMachine = LedgerMachine.TestCase
TestLedgerMachine.settings = settings(max_examples=120, stateful_step_count=40)
