"""What dunlin's own processes cost, where they delay requests. Pure; times are seconds."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MessageCosts:
    """Seconds of a processor that a process takes: of each step's answer, each row of it and each request; `idle_share`
    of the time whatever happens.
    """

    step_s: float = 0.0
    row_s: float = 0.0
    request_s: float = 0.0
    idle_share: float = 0.0


@dataclass(frozen=True, slots=True)
class ProcessCosts:
    """CPU costs of dunlin's own processes, where they delay requests.

    `instance` is paid on the engine's core if it `shares_core`, else on one of its own; `door` (a dispatcher and its
    clients) on another. `control` is a manager's and the monitor's: of each message, and each member that a view names.
    `hop_s` is what a message between two processes takes beside. The default of `control` was measured on cores alone
    (docs/measurements/2026-11-21-scale.md: a manager that weighs moves) and gRPC (docs/simulator.md).
    """

    instance: MessageCosts
    door: MessageCosts
    hop_s: float
    shares_core: bool
    control: MessageCosts = MessageCosts(step_s=22e-6, row_s=28e-6)
