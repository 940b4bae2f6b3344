"""What a global manager is told at start. Pure."""

from dataclasses import dataclass
from typing import Any

from dunlin.policies.presets import PRESETS
from dunlin.policies.rebalance import START_GAP


@dataclass(frozen=True, slots=True)
class GlobalManagerConfig:
    """Settings of the plan and of moves.

    An order without an answer, or refused, is given again after `retry_s`. At most `max_moves` moves are under way by
    the `rebalance` policy, which looks every `rebalance_s` and evens out loads that differ by `move_gap`; who took part
    in one rests for `move_rest_s`, until the views show what it changed. Where work is split, `prefill_share` of the
    instances compute prompts; how much room the others have is told them every `rooms_s` at most. Plans and moves look
    at everybody: beyond `small_fleet` instances, changes bring them about at most every `plan_member_s` for each one
    more.
    """

    policy: str = "local_groups"
    rebalance: str = "none"
    retry_s: float = 1.0
    report_interval_s: float = 0.5
    rebalance_s: float = 0.5
    move_rest_s: float = 0.5
    max_moves: int = 4
    move_gap: float = START_GAP
    prefill_share: float = 0.5
    rooms_s: float = 0.25
    plan_member_s: float = 50e-6
    small_fleet: int = 100

    def __post_init__(self) -> None:
        for name in ("retry_s", "report_interval_s", "rebalance_s", "move_rest_s", "rooms_s", "plan_member_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be positive")
        if not 0 < self.prefill_share < 1:
            raise ValueError(f"prefill_share is {self.prefill_share}: it must be between 0 and 1")
        if not 0 < self.move_gap <= 1:
            raise ValueError(f"move_gap is {self.move_gap}: it must be above 0 and at most 1")
        for name in ("max_moves", "small_fleet"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: needs at least 1")


def of_preset(name: str, **settings: Any) -> GlobalManagerConfig:
    """The configuration whose policies are those of preset `name`, but for what `settings` say."""
    preset = PRESETS[name]
    return GlobalManagerConfig(**{"policy": preset.group, "rebalance": preset.rebalance, **settings})
