"""A runner whose steps pause where a test wants it, and whose KV that was not written is no number."""

from dataclasses import dataclass, field
from typing import Any

from dunlin.engine.decoder.loading.loader import LoadedModel
from dunlin.engine.execution.engine_transfers import OwnMemory
from dunlin.engine.execution.limits import RunnerLimits
from dunlin.engine.execution.runner import EngineRunner
from dunlin.engine.transfer.slab import KvSlab
from dunlin.engine.transfer.transit_rooms import TransitRooms
from dunlin.messages.engine import Interrupt, Resume, StepDone
from dunlin.messages.types import Verdict, i64
from tests.engine.build import SteppingClock

LIMITS = RunnerLimits(response_s=0.0, piece_tokens=16, piece_columns=64)
LAYERS = 3


def poisoned_runner(
    loaded: LoadedModel, limits: RunnerLimits = LIMITS, rooms: TransitRooms | None = None
) -> EngineRunner:
    """A runner over KV in which no slot holds a number yet."""
    for layer in loaded.decoder.kv:
        layer[: loaded.slots].fill_(float("nan"))
    slab = KvSlab(loaded.decoder.kv, [loaded.slots] * len(loaded.decoder.kv))
    memory = OwnMemory(slab, rooms or TransitRooms())
    return EngineRunner(loaded.decoder, loaded.slots, SteppingClock(), limits, memory=memory)


def poison(loaded: LoadedModel, start: int, stop: int) -> None:
    """What is in these slots may not be read any more."""
    for layer in loaded.decoder.kv:
        layer[start:stop].fill_(float("nan"))


@dataclass
class Pauses:
    """A safepoint that asks for a pause at the `at`-th time that it is passed (0: never), once."""

    at: int = 0
    passed: int = 0

    def __call__(self) -> bool:
        self.passed += 1
        return self.passed == self.at


def interrupt(*sequences: int, verdict: Verdict = Verdict.SUSPEND, ticket: int = 1, up_to_step: int = 0) -> Interrupt:
    return Interrupt(verdict, i64(list(sequences)), ticket=ticket, up_to_step=up_to_step)


def resume(step: int, *sequences: int, after: tuple[int, ...] = ()) -> Resume:
    return Resume(step, i64(list(sequences)), i64(list(after)))


def drain(runner: EngineRunner) -> list[Any]:
    """Work until nothing is left."""
    events = []
    while runner.busy:
        events += runner.work(lambda: False)
    return events


def run_to(runner: EngineRunner, at: int, *messages: Any) -> list[Any]:
    """Feed the messages and work until the `at`-th safepoint."""
    pauses = Pauses(at)
    events = [event for message in messages for event in runner.receive(message)]
    while runner.busy and pauses.passed < at:
        events += runner.work(pauses)
    return events


@dataclass
class Tokens:
    """What the steps' answers say, by sequence: tokens and logprobs in order; rows that left, by step."""

    tokens: dict[int, list[int]] = field(default_factory=dict)
    logprobs: dict[int, list[float]] = field(default_factory=dict)

    def add(self, events: list[Any]) -> None:
        for event in events:
            if isinstance(event, StepDone):
                for sequence, token, logprob in zip(event.sequence, event.token, event.logprob, strict=True):
                    self.tokens.setdefault(sequence, []).append(token)
                    self.logprobs.setdefault(sequence, []).append(logprob)


def answers(events: list[Any], kind: type[Any]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]
