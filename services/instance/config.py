"""What an instance is told at start. Pure."""

from dataclasses import dataclass

from dunlin.cost.models import StepModel
from dunlin.policies.presets import PRESETS

_MOVES = ("max_leaving", "max_arriving", "max_handovers", "tail_tokens")
_MOVES_S = ("move_stage_s", "arrival_s", "hold_s", "handover_pause_s")


@dataclass(frozen=True, slots=True)
class InstanceConfig:
    """Settings of one instance's core.

    `max_slots` caps the slots that the engine offers (0: all of them). `max_running` sequences hold slots at once and
    `max_waiting` more may wait; the next is refused. A step holds at most `budget_tokens`. A running sequence is given
    slots for `run_ahead_tokens` more tokens at a time, so that its extents stay long. `prefix_reuse`: sequences that
    begin with the same tokens, of the same tenant, share their slots. `stuck_s` without a safepoint while steps are
    outstanding means a stuck engine, `load_stuck_s` one that is stuck while it loads (importing passes none). A lost
    engine's work waits for the next one if that is expected within `engine_grace_s`, and no longer. A
    dispatcher that stays away for `orphan_grace_s` loses its requests here; for as long, the last `most_retained`
    answers, of `most_retained_tokens` tokens in all, are kept for another one. A kvstore that has not answered after
    `tier_answer_s` is not waited for. The engine spends at most `checkpoint_share` of its time on copies of what runs
    (0: none are made), of `checkpoint_tokens` to `checkpoint_most_tokens` tokens each.

    `max_leaving` sequences move to other instances at once, and `max_arriving` come here. The row of one that leaves
    stops when at most `tail_tokens` of it are missing at its target; a stage of its move lasts `move_stage_s` at most,
    and room that nobody uses is kept for `arrival_s`. Where work is split, a prefill instance hands over up to
    `max_handovers` sequences at once; a row waits for that for `hold_s` at most, and a decode instance that had no room
    is left alone for `handover_pause_s`.
    """

    node: str = ""
    model: str = ""
    preset: str = "chunked"
    max_slots: int = 0
    max_running: int = 128
    max_waiting: int = 256
    budget_tokens: int = 512
    run_ahead_tokens: int = 32
    stuck_s: float = 3.0
    engine_grace_s: float = 3.0
    load_stuck_s: float = 60.0
    prefix_reuse: bool = True
    orphan_grace_s: float = 30.0
    most_retained: int = 1024
    most_retained_tokens: int = 1 << 20
    tier_answer_s: float = 3.0
    checkpoint_share: float = 0.025
    checkpoint_tokens: int = 64
    checkpoint_most_tokens: int = 1024
    max_leaving: int = 4
    max_arriving: int = 16
    max_handovers: int = 16
    hold_s: float = 10.0
    handover_pause_s: float = 0.05
    tail_tokens: int = 32
    move_stage_s: float = 5.0
    arrival_s: float = 15.0
    report_interval_s: float = 0.5
    report_after_change_s: float = 0.05
    step_model: StepModel | None = None
    """What steps cost on this machine, if it was profiled; for policies that ask."""

    def __post_init__(self) -> None:
        if self.preset not in PRESETS:
            raise ValueError(f"no preset {self.preset!r}: choose one of {', '.join(PRESETS)}")
        sizes = ("max_running", "max_waiting", "budget_tokens", "run_ahead_tokens", "checkpoint_tokens")
        for name in (*sizes, "most_retained", *_MOVES):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: needs at least 1")
        if self.max_slots < 0:
            raise ValueError(f"max_slots is {self.max_slots}: needs 0 (no cap) or more")
        if not 0 <= self.checkpoint_share <= 0.5:
            raise ValueError(f"checkpoint_share is {self.checkpoint_share}: needs 0 (no checkpoints) to 0.5")
        reports = ("report_interval_s", "report_after_change_s")
        durations = ("stuck_s", "engine_grace_s", "load_stuck_s", "orphan_grace_s", "tier_answer_s")
        for name in (*durations, *_MOVES_S, *reports):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name} is {getattr(self, name)}: needs a positive, finite number of seconds")
