"""Plans of the campaign as rounds of a live run: the same draws, in the units of real processes. Pure.

A round lasts `ROUND_S`. Its faults are those of the plan of its own seed. Its requests are those of one of the first
`sets` plans, since each of their texts must have been generated once undisturbed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from benchmarks.faults.chaos.kinds import LIVE_KINDS
from simulator.campaign.long_prompts import elastic_part
from simulator.campaign.plans import Fault, PlannedRequest, TrialPlan, draw_plan

NODES = 3
ROUND_S = 90.0
QUIET_S = 10.0
"""Seconds at the end of a round in which no fault begins."""
PROMPT_SCALE, ANSWER_SCALE, DEADLINE_SCALE = 4, 2, 10
"""Tokens and deadlines of a live request for one of the plan's: a process here takes some ten times as long to come
back as there.
"""
LONGEST_FAULT_S = 15.0


@dataclass(frozen=True, slots=True)
class LiveRequest:
    """A request of a round. `text`: the number of its expected answer; `at_s`: seconds after the round's begin.

    `key`: its idempotency key, empty for none. `second_client_s`, `disconnect_s`: as `PlannedRequest`, in seconds.
    `seed` None: greedy.
    """

    text: int
    at_s: float
    prompt: tuple[int, ...]
    max_tokens: int
    seed: int | None
    tenant: str
    door: int
    key: str = ""
    second_client_s: float | None = None
    disconnect_s: float | None = None
    timeout_s: float | None = None
    is_batch: bool = False


@dataclass(frozen=True, slots=True)
class LiveRound:
    """One round: its own seed, its requests and faults in order of time."""

    number: int
    seed: int
    requests: tuple[LiveRequest, ...]
    faults: tuple[Fault, ...]


def live_plan(seed: int, preset: str, per_node: int = 1, slots: int | None = None) -> TrialPlan:
    """The campaign's plan of a seed, with faults that a live run can strike. With several instances per node, which
    form groups, some prompts are longer than the slots of one: the plan's, or `slots`.
    """
    plan = draw_plan(seed, LIVE_KINDS, (preset,))
    if per_node == 1:
        return plan
    shape = replace(plan.shape, instances=NODES * per_node, nodes=NODES, slots=slots or plan.shape.slots)
    return elastic_part(replace(plan, shape=shape))


class RoundPlanner:
    """The rounds of a run of `seed`. `sets`: of how many plans the requests are. `waves`: times a round sends each.
    `per_node`: instances on each node.
    """

    def __init__(
        self, seed: int, preset: str, vocabulary: int, sets: int = 3, waves: int = 1, per_node: int = 1
    ) -> None:
        self._seed = seed
        self._preset = preset
        self._per_node = per_node
        self._slots = live_plan(seed, preset).shape.slots
        self._vocabulary = vocabulary
        self._waves = waves
        plans = [self.plan(seed + index) for index in range(sets)]
        self._texts: list[LiveRequest] = []
        self._sets: list[list[int]] = []
        for plan in plans:
            asked = [self._translated(len(self._texts) + at, ask, plan) for at, ask in enumerate(plan.requests)]
            self._sets.append([one.text for one in asked])
            self._texts += asked

    @property
    def slots(self) -> int:
        """Slots of an instance: a longer request needs a group."""
        return self._slots * PROMPT_SCALE

    @property
    def texts(self) -> Sequence[LiveRequest]:
        """All requests there are, each once, by the number of their text."""
        return self._texts

    def plan(self, seed: int) -> TrialPlan:
        """The plan of a seed, for the slots of the run's cluster."""
        return live_plan(seed, self._preset, self._per_node, self._slots)

    def round(self, number: int) -> LiveRound:
        """The round of that number."""
        seed = self._seed + number
        requests = sorted(self._waves_of(number), key=lambda one: one.at_s)
        faults = sorted(scaled_faults(self.plan(seed)), key=lambda one: one.at_s)
        return LiveRound(number, seed, tuple(requests), tuple(faults))

    def _waves_of(self, number: int) -> Iterator[LiveRequest]:
        for wave in range(self._waves):
            for text in self._sets[number % len(self._sets)]:
                ask = self._texts[text]
                at_s = (ask.at_s + wave * ROUND_S / self._waves) % ROUND_S
                key = f"{ask.key} {number} {wave}" if ask.key else ""
                yield replace(ask, at_s=at_s, key=key, door=ask.door + wave)

    def _translated(self, text: int, ask: PlannedRequest, plan: TrialPlan) -> LiveRequest:
        return LiveRequest(
            text,
            ask.at_s * _stretch([one.at_s for one in plan.requests]),
            live_tokens(ask.tokens, self._vocabulary),
            ask.max_tokens * ANSWER_SCALE,
            ask.number if ask.number % 2 else None,
            ask.tenant,
            ask.door,
            f"chaos {self._seed} {text}" if ask.named else "",
            _scaled(ask.second_client_s, 1),
            _scaled(ask.disconnect_s, DEADLINE_SCALE),
            _scaled(ask.timeout_s, DEADLINE_SCALE),
            ask.is_batch,
        )


def live_tokens(tokens: Sequence[int], vocabulary: int) -> tuple[int, ...]:
    """`PROMPT_SCALE` tokens for each of the plan's: prompts that begin alike there do so here."""
    return tuple((token * PROMPT_SCALE + part) % vocabulary for token in tokens for part in range(PROMPT_SCALE))


def scaled_faults(plan: TrialPlan) -> list[Fault]:
    """The plan's faults within a round, in the same order; none waits for a phase, which only a core could tell."""
    stretch = _stretch([fault.at_s for fault in plan.faults])
    return [
        replace(fault, at_s=fault.at_s * stretch, lasts_s=min(fault.lasts_s, LONGEST_FAULT_S), aim="")
        for fault in plan.faults
    ]


def _stretch(times_s: Sequence[float]) -> float:
    """By what to multiply these times so that they fill a round but for its quiet end."""
    last_s = max(times_s, default=0.0)
    return (ROUND_S - QUIET_S) / last_s if last_s > 0 else 1.0


def _scaled(value_s: float | None, scale: float) -> float | None:
    return None if value_s is None else value_s * scale
