"""What a dispatcher is told at start. Pure."""

from dataclasses import dataclass
from typing import Any

from dunlin.policies.admit import ADMIT_POLICIES
from dunlin.policies.dispatch import POLICIES
from dunlin.policies.presets import PRESETS

PERIODS = (
    "max_wait_s",
    "refusal_pause_s", "report_interval_s", "unavailable_after_s", "give_up_after_s", "ask_s", "grace_s", "replay_s",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class DispatcherConfig:
    """Settings of one dispatcher's core.

    `max_queued` requests may wait for an instance; more are refused at the door. So is one, unless it is of the batch
    class, whose turn would come later than in `max_wait_s`, at the pace of the last ones. `max_waiting` is how many
    may wait at an instance for slots there: enough to bridge the time until its load is known here, no more, since
    what waits here can still go anywhere. `max_positions` is the model's limit for prompt and generated tokens, 0 if
    unknown.
    `max_losses` hand-outs of one request in a row, without a token between, may be lost with their instance before it
    ends with an error. A request that may run elsewhere already waits `ask_s` for the instances to say so. One with an
    idempotency key runs on for `grace_s` when its last reader has left, and its answer is kept for `replay_s`: the last
    `most_replays` of them, of `most_replay_tokens` tokens in all.
    """

    policy: str = "least_loaded"
    admit: str = "all"
    max_positions: int = 0
    max_queued: int = 1024
    max_waiting: int = 16
    max_wait_s: float = 30.0
    max_losses: int = 16
    refusal_pause_s: float = 0.05
    view_lag_s: float = 0.1
    report_interval_s: float = 0.5
    unavailable_after_s: float = 10.0
    give_up_after_s: float = 60.0
    ask_s: float = 2.0
    grace_s: float = 30.0
    replay_s: float = 60.0
    most_replays: int = 1024
    most_replay_tokens: int = 1 << 20

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise ValueError(f"no dispatch policy {self.policy!r}: choose one of {', '.join(POLICIES)}")
        if self.admit not in ADMIT_POLICIES:
            raise ValueError(f"no admit policy {self.admit!r}: choose one of {', '.join(ADMIT_POLICIES)}")
        for name in ("max_queued", "max_waiting", "max_losses", "most_replays"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: needs at least 1")
        for name in PERIODS:
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name} is {getattr(self, name)}: needs a positive, finite number of seconds")


def of_preset(name: str, **settings: Any) -> DispatcherConfig:
    """The configuration whose policies are those of preset `name`, but for what `settings` say."""
    preset = PRESETS[name]
    return DispatcherConfig(**{"policy": preset.dispatch, "admit": preset.admit, **settings})
