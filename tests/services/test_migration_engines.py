"""A row that left its step, inside attention too, goes on at another instance: real cores and real engines."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dunlin.effects import Send
from dunlin.engine.attention import deterministic
from dunlin.messages.engine import Interrupted
from dunlin.messages.plan import EvacuateDone
from dunlin.messages.types import FinishReason, Verdict
from services.instance.core import InstanceCore
from services.instance.sequence.sequence import Sequence
from services.instance.sequence.states import SequenceState
from tests.engine.build import make_checkpoint
from tests.services.engine_cluster import EngineCluster, EngineMemory, RealEngine
from tests.services.moving import evacuate, other, until_sent

LAYERS = 2
LONG = [(7 * at * at + 3 * at + 11) % 500 for at in range(70)]
FOREIGN = ([11, 22, 33, 44, 55], [66, 77, 88, 99])
"""Each instance decodes one of them when the long prompt comes."""
BUDGET = 33
"""Tokens of a step: the long prompt comes in chunks of 32, beside the foreign sequence's next token."""


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a chunk has several pieces of attention."""
    monkeypatch.setattr(deterministic, "RUN_QUERIES", 16)


@pytest.fixture(scope="module")
def memories(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[EngineMemory]]:
    checkpoint = make_checkpoint(tmp_path_factory.mktemp("model"), seed=3, layers=LAYERS)
    loaded = [EngineMemory.load(checkpoint) for _ in range(2)]
    yield loaded
    for each in loaded:
        each.model.arena.close()


class Trial:
    """Two instances, each with a foreign sequence that decodes, and the long prompt at one of them, the source."""

    def __init__(self, memories: list[EngineMemory], tier: Path, peers: bool) -> None:
        self.cluster = EngineCluster(memories, tier, peers, instance={"scheduler.budget_tokens": BUDGET})
        self.cluster.world.on_delivered = lambda event: self.cluster.check_conservation()
        self.cluster.run_until_ready()
        self.clients = [self.cluster.submit(tokens, max_tokens=16) for tokens in FOREIGN]
        self.until(lambda: all(len(client.tokens) >= 2 for client in self.clients))
        self.clients.append(self.cluster.submit(LONG, max_tokens=6))
        self.until(lambda: len(self.clients[-1].request) > 0)
        self.until(lambda: any(self._is_long(each) for core in self._cores for each in core.sequences))
        self.source = self.cluster.instance_running(self.clients[-1])
        self.target = other(self.cluster, self.source)
        self.core, self.engine = self.cluster.instances[self.source], self.cluster.engines[self.source]
        (self.long,) = [each for each in self.core.sequences if self._is_long(each)]

    @property
    def _cores(self) -> list[InstanceCore]:
        return list(self.cluster.instances.values())

    @property
    def texts(self) -> list[list[int]]:
        return [client.tokens for client in self.clients]

    @property
    def engines(self) -> list[RealEngine]:
        return list(self.cluster.engines.values())

    @property
    def computed(self) -> int:
        """Tokens times layers that both engines have finished."""
        return sum(engine.runner.steps.count.finished for engine in self.engines)

    def until(self, holds: Callable[[], bool]) -> None:
        assert self.cluster.world.run(holds, for_s=20.0)

    def run_to(self, at: int) -> bool:
        """Up to safepoint `at` of the step with the long prompt's second chunk; False: it has fewer."""
        self.until(lambda: self.long.valid > 0)
        first = self.long.valid
        self.until(lambda: self.engine.passed == at or self.long.valid > first)
        return self.long.valid == first

    def interrupt(self, verdict: Verdict) -> Any:
        """The long row leaves its step, and the core hears of it."""
        for effect in self.core.steps.interrupt([self.long], verdict):
            assert isinstance(effect, Send)
            self.cluster.world.post(self.core.address, effect.to, effect.message, 0.0)
        self.until(lambda: not self.core.steps.is_held(self.long))
        (answer,) = self.engine.answers(Interrupted)
        return answer

    def foreign_step(self) -> None:
        """The source's foreign sequence gets a token."""
        (foreign,) = [each for each in self.core.sequences if each is not self.long]
        before = len(foreign.tokens)
        self.until(lambda: len(foreign.tokens) > before)

    def migrate(self) -> None:
        """All that the source runs goes to the target."""
        evacuate(self.cluster, self.source, self.target, slots=1000)
        done = until_sent(self.cluster, EvacuateDone)
        assert (done.moved, done.stayed) == (2, 0)

    def finish(self) -> None:
        self.cluster.run_until_done()
        assert [client.finish for client in self.clients] == [FinishReason.LENGTH] * 3
        self.cluster.world.run(for_s=2.0)
        assert self.cluster.all_free()
        assert all(len(engine.runner.steps.parked) == 0 for engine in self.engines)

    def _is_long(self, sequence: Sequence) -> bool:
        return sequence.place.prompt_tokens == len(LONG)


@pytest.fixture(scope="module")
def undisturbed(memories: list[EngineMemory], tmp_path_factory: pytest.TempPathFactory) -> tuple[list[list[int]], int]:
    """The texts, and the tokens times layers that were computed."""
    trial = Trial(memories, tmp_path_factory.mktemp("tier") / "tier", peers=False)
    trial.finish()
    return trial.texts, trial.computed


@pytest.mark.parametrize("verdict", Verdict)
def test_a_row_that_left_at_any_safepoint_goes_on_at_another_instance(
    memories: list[EngineMemory], undisturbed: tuple[list[list[int]], int], tmp_path: Path, verdict: Verdict
) -> None:
    """Its valid KV goes from slab to slab, at every third safepoint through the host tier."""
    texts, computed = undisturbed
    inside_attention = 0
    for at in range(1, 100):
        trial = Trial(memories, tmp_path / "tier", peers=at % 3 > 0)
        if not trial.run_to(at):
            break
        valid, left = trial.long.valid, trial.interrupt(verdict)
        inside_attention += left.block[0] > 0
        assert left.parked[0] == verdict
        if verdict is Verdict.SUSPEND:
            parked = trial.engine.runner.steps.parked.get(trial.long.number)
            lost = parked.progress.layer * parked.row.tokens + parked.progress.finished
            trial.foreign_step()
            assert (trial.long.state, trial.long.valid) == (SequenceState.PARKED, valid)
        trial.migrate()
        trial.finish()
        assert trial.texts == texts, at
        if verdict is Verdict.SUSPEND:
            assert trial.computed == computed + lost, "each layer once for each row, but for what the parked one lost"
    assert at > 4 * LAYERS
    assert inside_attention >= LAYERS
