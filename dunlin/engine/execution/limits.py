"""The bounds of what an engine keeps and does at a time."""

from dataclasses import dataclass, field

from dunlin.engine.transfer.transfer_queue import TransferLimits


@dataclass(frozen=True, slots=True)
class RunnerLimits:
    """Bounds of the state that the engine keeps, and of what transfers copy beside steps.

    Linear work of a step that can be interrupted is cut into pieces of `response_s`, but into no smaller ones than the
    numerics say; `piece_tokens` and `piece_columns` replace what they say where they cut so. Rows that leave are parked
    up to `parked_rows` of them with `parked_bytes`; and as many bytes of up to `parked_steps` steps with peers.
    """

    steps: int = 16
    sequences: int = 4096
    transfers: TransferLimits = field(default_factory=TransferLimits)
    response_s: float = 0.005
    piece_tokens: int | None = None
    piece_columns: int | None = None
    parked_rows: int = 256
    parked_bytes: int = 1 << 30
    parked_steps: int = 8
