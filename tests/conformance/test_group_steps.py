"""Steps with peers: real engines and modelled ones answer the same orders alike, each member event by event."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dunlin.messages.engine import Step, StepDone
from tests.conformance.comparison import comparable, is_placed
from tests.conformance.group_conductor import GroupConductor, Order
from tests.conformance.group_sides import RealGroup, TwinGroup, forget
from tests.engine.build import make_checkpoint

LAYERS = 3
ROUNDS = ("spread", "ring", "masters", "masters", "masters", "blocks", "blocks", "blocks", "chunks", "chunks", "chunks")
WITHIN = ("tell", "tell", "work", "work", "interrupt", "end", "close", "forget", "suspend", "suspend", "resume", "push")
Within = Sequence[tuple[str, int, int]]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"), layers=LAYERS)


class Groups:
    """Both groups, the core that commands them, and how many answers of each member were compared."""

    def __init__(self, directory: Path, count: int) -> None:
        self.core = GroupConductor(count, LAYERS)
        self.real = RealGroup(directory, count)
        self.twin = TwinGroup(self.real.members)
        self.count = count
        self._compared = [0] * count
        self.meet_all()

    def meet_all(self) -> None:
        self.real.meet_all()
        self.twin.meet_all()
        self.compare()

    def tell(self, order: Order) -> None:
        if isinstance(order[1], Step):
            self.core.told.add(order[0])
        for side in (self.real, self.twin):
            side.tell(*order)

    def begin(self) -> None:
        """Begin the steps that were told: a modelled member begins one when it comes, a real one when it works."""
        for member, each in enumerate(self.real.members):
            if each.runner.busy and not each.runner.steps.is_running:
                self.real.advance(member, 1)

    def run(self, orders: list[Order], within: Within = ()) -> None:
        """Orders in turn, with what comes between and after them; then compute to the end, and compare."""
        waiting, is_torn = list(orders), False
        for op, a, b in within:
            if op == "tell" and waiting:
                self.tell(waiting.pop(0))
                continue
            self.begin()
            if not (is_torn or self.has_answered):
                act_within(self, op, a, b)
            is_torn |= op == "forget"  # the real members notice when they next write, each at its time
        for order in waiting:
            self.tell(order)
        for member in list(self.core.parked):
            for order in self.core.resume(member):
                self.tell(order)
        for member in self.finish():
            self.tell(self.core.interrupt(member, 0, []))
        assert self.finish() == []
        self.core.end_round()
        for order in self.core.close_lost():
            self.tell(order)
        self.meet_all()

    @property
    def has_answered(self) -> bool:
        """Whether a real member has answered a step of the round: a modelled one answers it at the end of its time."""
        fresh = [events[seen:] for events, seen in zip(self.real.events, self._compared, strict=True)]
        return any(isinstance(event, StepDone) for events in fresh for event in events)

    def finish(self) -> list[int]:
        """Compute to the end; returns the members that wait for a step that was refused elsewhere."""
        stuck = self.real.finish()
        self.twin.finish()
        self.compare()
        return stuck

    def compare(self) -> None:
        """Every member's answers since the last comparison."""
        assert not self.twin.broken, self.twin.broken
        for member in range(self.count):
            ours, theirs = (side.events[member][self._compared[member] :] for side in (self.real, self.twin))
            assert [comparable(event) for event in theirs] == [comparable(event) for event in ours]
            for event in ours:
                assert is_placed(event, LAYERS)
                self.core.learn(member, event)
            self._compared[member] += len(ours)


def act_within(groups: Groups, op: str, a: int, b: int) -> None:
    """One drawn operation between the orders of a round. No member reaches its last layer: from there on, what the
    others had of it depends on the timing.
    """
    member = a % groups.count
    if op == "work":
        if groups.real.is_early(member, LAYERS - 1):
            groups.real.advance(member, 1 + b % 4)
        groups.twin.advance()
    elif op in ("interrupt", "end", "suspend"):
        order = groups.core.interrupt(member, b % 2, [a, b][: b % 3])
        if op != "interrupt":
            order = groups.core.end_step(member, b % 2) if op == "end" else groups.core.suspend(member)
        groups.tell(order)
        groups.real.advance(member, 1)
        groups.twin.reach_safepoint(member, order[1].ticket)
        if op == "suspend":
            groups.compare()
    elif op == "resume":
        orders = groups.core.resume(member) if b % 4 else groups.core.forget_parked(member)
        for order in orders:
            groups.tell(order)
        groups.begin()
    elif op == "push":
        for order in groups.core.push(member, (member + 1 + b % (groups.count - 1)) % groups.count):
            groups.tell(order)
    elif op == "close":
        for order in groups.core.close(a):
            groups.tell(order)
    elif op == "forget" and not groups.core.has_pushed:  # a copy fails when it next writes, each side at its time
        groups.tell((member, forget((member + 1 + b % (groups.count - 1)) % groups.count)))
        groups.real.advance(member, 1)


def play(groups: Groups, op: str, numbers: list[int], within: Within) -> None:
    a, b, *more = numbers
    if op == "spread":
        for orders in groups.core.spread(8 + a % 60, [b, *more], [a, b, *more], 1 + b % 5):
            groups.run(orders)
    elif op == "ring":
        groups.run(groups.core.ring(5 + a % 60, [b, *more]), within)
    elif op == "chunks":
        for inner in ((), within):  # the first chunk of a text asks nobody
            groups.run(groups.core.chunks(5 + a % 60, [b, *more], 2 + more[1] % 40), inner)
    elif op == "blocks":
        groups.run(groups.core.blocks(5 + a % 60, [b, *more], 2 + more[0] % 40), within)
    else:
        groups.run(groups.core.masters([a, b], 1 + b % 4), within)


NUMBERS = st.lists(st.integers(0, 99), min_size=4, max_size=4)
BETWEEN = st.lists(st.tuples(st.sampled_from(WITHIN), st.integers(0, 99), st.integers(0, 99)), max_size=8)


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(
    count=st.integers(2, 3),
    rounds=st.lists(st.tuples(st.sampled_from(ROUNDS), NUMBERS, BETWEEN), min_size=3, max_size=8),
)
def test_both_groups_answer_alike(directory: Path, count: int, rounds: list[tuple[str, list[int], Within]]) -> None:
    with groups_of(directory, count) as groups:
        play(groups, "spread", [40, 20, 11, 31], [])
        for op, numbers, within in rounds:
            play(groups, op, numbers, within)


@contextmanager
def groups_of(directory: Path, count: int) -> Iterator[Groups]:
    groups = Groups(directory, count)
    try:
        yield groups
    finally:
        groups.real.close()
