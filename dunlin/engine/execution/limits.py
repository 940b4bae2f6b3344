"""The bounds of what an engine keeps and does at a time."""

from dataclasses import dataclass

from dunlin.engine.decoder.piece_sizes import LEAST


@dataclass(frozen=True, slots=True)
class RunnerLimits:
    """Bounds of the state that the engine keeps, and of the bytes that moves copy before each iteration of a step.

    That is `copied_bytes`, and more as long as it takes no longer than `copy_share` of what the last iteration took:
    beside steps of one token a large region is copied bit by bit, beside those of a long prompt at once.

    Linear work of a step that can be interrupted is cut into pieces of `response_s`, but of no fewer than
    `piece_tokens`. Rows that leave are parked up to `parked_rows` of them with `parked_bytes`; hidden states between
    steps of different layers take up to `room_bytes`.
    """

    steps: int = 16
    copied_bytes: int = 512 << 10
    copy_share: float = 0.2
    moves: int = 1024
    sequences: int = 4096
    response_s: float = 0.005
    piece_tokens: int = LEAST
    parked_rows: int = 256
    parked_bytes: int = 1 << 30
    room_bytes: int = 1 << 30
