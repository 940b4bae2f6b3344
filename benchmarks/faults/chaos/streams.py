"""What one client of a live run was told, as recorded, and what is wrong with it: I1 and I12. Pure."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise

from benchmarks.faults.chaos.rounds import LiveRequest
from dunlin.messages.types import FinishReason
from simulator.campaign.stream_rules import LEGAL_ERRORS, WAIT_TOO_LONG, is_late, is_whole, wrong_tokens

CLOCK_RESOLUTION = 1.05
"""Seconds that a clock may show for one: offsets differ, rates do not."""


class StreamEnd(Enum):
    """How a stream ended, by the error that its client got."""

    OPEN = "not ended"
    FINISHED = "finished"
    LEFT = "left"
    DEADLINE = "deadline"
    REFUSED = "refused"
    FAILED = "failed"
    UNAVAILABLE = "unavailable"
    STRANGE = "strange"


@dataclass(slots=True, eq=False)
class RecordedStream:
    """One client of a request. `pieces`: the tokens of each event, with the time in seconds since the run began.

    `tries`: calls of the SDK; before the request is admitted, a client calls again where no dispatcher answers.
    `after_end`: events after the one with a finish reason.
    """

    request: LiveRequest
    began_s: float = 0.0
    pieces: list[tuple[float, tuple[int, ...]]] = field(default_factory=list)
    public_id: str = ""
    finish: FinishReason = FinishReason.RUNNING
    end: StreamEnd = StreamEnd.OPEN
    detail: str = ""
    ended_s: float = 0.0
    tries: int = 0
    after_end: int = 0

    @property
    def tokens(self) -> list[int]:
        """All tokens so far."""
        return [token for _, tokens in self.pieces for token in tokens]

    @property
    def longest_gap_s(self) -> float:
        """The longest time without tokens between its begin, or tokens, and the next ones."""
        times = [self.began_s, *(at_s for at_s, _ in self.pieces)]
        return max((later - earlier for earlier, later in pairwise(times)), default=0.0)

    @property
    def name(self) -> str:
        """For people."""
        ask = self.request
        return f"{self.public_id or 'no id'} (text {ask.text}, begun at {self.began_s:.1f} s, key {ask.key!r})"


def stream_complaints(stream: RecordedStream, expected: Sequence[int], is_struck: bool) -> list[str]:
    """What is wrong with a stream: I1 and I12. `is_struck`: a fault was struck before it ended."""
    wrong = [*_token_complaints(stream, expected), *_end_complaints(stream, expected, is_struck)]
    return [f"{stream.name}: {text}" for text in wrong]


def excuses(streams: Sequence[RecordedStream]) -> Counter[str]:
    """The ends that are legal and no whole answer, by their kind, so that their number can be seen."""
    return Counter(stream.end.value for stream in streams if stream.end is not StreamEnd.FINISHED)


def _token_complaints(stream: RecordedStream, expected: Sequence[int]) -> list[str]:
    at = 0
    for at_s, tokens in stream.pieces:
        if wrong := wrong_tokens(expected, at, tokens):
            return [f"I1: at {at_s:.1f} s, behind {at} tokens, {wrong}"]
        at += len(tokens)
    return [f"I1: {stream.after_end} events after its end"] if stream.after_end else []


def _end_complaints(stream: RecordedStream, expected: Sequence[int], is_struck: bool) -> list[str]:
    said = f"{stream.end.value}, {stream.finish.name}, {len(stream.tokens)} of {len(expected)} tokens: {stream.detail}"
    match stream.end:
        case StreamEnd.OPEN:
            return [f"I12: still waits, {said}"]
        case StreamEnd.FINISHED:
            is_legal = is_whole(stream.finish, expected, stream.tokens)
        case StreamEnd.LEFT:
            is_legal = stream.request.disconnect_s is not None
        case StreamEnd.DEADLINE:
            is_legal = is_late(stream.request.timeout_s, stream.ended_s - stream.began_s, CLOCK_RESOLUTION)
        case StreamEnd.REFUSED:
            # The queue is longer than all clients of a run: only a turn that would come too late is refused.
            is_legal = stream.request.timeout_s is not None or WAIT_TOO_LONG in stream.detail
        case StreamEnd.FAILED:
            is_legal = is_struck and any(text in stream.detail for text in LEGAL_ERRORS)
        case _:
            is_legal = False
    return [] if is_legal else [f"I1: should not have ended so: {said}"]
