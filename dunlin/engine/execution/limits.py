"""The bounds of what an engine keeps and does at a time."""

from dataclasses import dataclass, field

from dunlin.engine.decoder.piece_sizes import LEAST
from dunlin.engine.transfer.transfer_queue import TransferLimits


@dataclass(frozen=True, slots=True)
class RunnerLimits:
    """Bounds of the state that the engine keeps, and of what transfers copy beside steps.

    Linear work of a step that can be interrupted is cut into pieces of `response_s`, but of no fewer than
    `piece_tokens`. Rows that leave are parked up to `parked_rows` of them with `parked_bytes`.
    """

    steps: int = 16
    sequences: int = 4096
    transfers: TransferLimits = field(default_factory=TransferLimits)
    response_s: float = 0.005
    piece_tokens: int = LEAST
    parked_rows: int = 256
    parked_bytes: int = 1 << 30
