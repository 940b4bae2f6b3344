"""What a global manager is told at start. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GlobalManagerConfig:
    """Settings of the plan. An order without an answer, or refused, is given again after `retry_s`."""

    policy: str = "local_groups"
    retry_s: float = 1.0
    report_interval_s: float = 0.5

    def __post_init__(self) -> None:
        for name in ("retry_s", "report_interval_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be positive")
