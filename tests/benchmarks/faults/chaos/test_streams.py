"""Recorded streams: what a client was told is judged, and each way in which it can be wrong is found."""

import pytest

from benchmarks.faults.chaos.rounds import LiveRequest
from benchmarks.faults.chaos.streams import RecordedStream, StreamEnd, excuses, stream_complaints
from dunlin.messages.types import FinishReason

EXPECTED = [5, 6, 7, 8]


def request(**more: object) -> LiveRequest:
    return LiveRequest(0, 0.0, (1, 2), 4, None, "", 0, **more)  # type: ignore[arg-type]


def stream(*pieces: tuple[int, ...], **more: object) -> RecordedStream:
    """A stream that ended whole, unless `more` says otherwise."""
    told = {"finish": FinishReason.LENGTH, "end": StreamEnd.FINISHED, "ended_s": 9.0, "request": request(), **more}
    return RecordedStream(pieces=[(float(at), tokens) for at, tokens in enumerate(pieces)], **told)  # type: ignore[arg-type]


def test_a_whole_answer_is_right_however_it_was_cut() -> None:
    assert stream_complaints(stream((5,), (6, 7), (8,)), EXPECTED, is_struck=False) == []
    assert stream_complaints(stream((5, 6, 7, 8)), EXPECTED, is_struck=False) == []


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param([(5, 6), (9, 8)], id="another token"),
        pytest.param([(5, 6), (6, 7, 8)], id="a token twice"),
        pytest.param([(5,), (7, 8)], id="a token left out"),
        pytest.param([(6, 5), (7, 8)], id="in another order"),
        pytest.param([(5, 6, 7, 8), (9,)], id="more than the answer"),
        pytest.param([(5, 6, 7)], id="a part that says it is all"),
        pytest.param([], id="nothing that says it is all"),
    ],
)
def test_any_other_text_is_found(pieces: list[tuple[int, ...]]) -> None:
    (found,) = stream_complaints(stream(*pieces), EXPECTED, is_struck=True)[:1]
    assert "I1" in found


def test_an_event_after_the_end_is_found() -> None:
    (found,) = stream_complaints(stream((5, 6, 7, 8), after_end=1), EXPECTED, is_struck=True)
    assert "after its end" in found


def test_a_stream_that_never_ends_is_found() -> None:
    (found,) = stream_complaints(
        stream((5,), end=StreamEnd.OPEN, finish=FinishReason.RUNNING), EXPECTED, is_struck=True
    )
    assert "I12" in found


@pytest.mark.parametrize(
    ("asked", "end", "detail", "is_struck", "is_legal"),
    [
        ({"disconnect_s": 1.0}, StreamEnd.LEFT, "", False, True),
        ({}, StreamEnd.LEFT, "", True, False),
        ({"timeout_s": 2.0}, StreamEnd.DEADLINE, "", False, True),
        ({"timeout_s": 20.0}, StreamEnd.DEADLINE, "", True, False),
        ({}, StreamEnd.DEADLINE, "", True, False),
        ({"timeout_s": 2.0}, StreamEnd.REFUSED, "its turn would come in 9 s", False, True),
        (
            {},
            StreamEnd.REFUSED,
            "its turn would come in 9 s, later than the 5 s allowed",
            True,
            True,
        ),
        ({}, StreamEnd.REFUSED, "the queue is full", True, False),
        ({}, StreamEnd.FAILED, "GenerationFailed: given up after 3 lost attempts", True, True),
        ({}, StreamEnd.FAILED, "GenerationFailed: given up after 3 lost attempts", False, False),
        ({}, StreamEnd.FAILED, "GenerationFailed: the engine computed nonsense", True, False),
        ({}, StreamEnd.UNAVAILABLE, "no dispatcher answers", True, False),
        ({}, StreamEnd.STRANGE, "ServerError", True, False),
    ],
)
def test_an_end_without_the_answer_needs_its_reason(
    asked: dict[str, object], end: StreamEnd, detail: str, is_struck: bool, is_legal: bool
) -> None:
    given = stream((5,), end=end, detail=detail, finish=FinishReason.RUNNING, request=request(**asked))
    assert (stream_complaints(given, EXPECTED, is_struck) == []) == is_legal


def test_what_came_before_a_legal_end_must_be_right_too() -> None:
    given = stream((9,), end=StreamEnd.LEFT, finish=FinishReason.RUNNING, request=request(disconnect_s=1.0))
    assert stream_complaints(given, EXPECTED, is_struck=False)


def test_excused_ends_are_counted_by_kind_and_the_longest_silence_is_from_the_begin() -> None:
    left = stream(end=StreamEnd.LEFT)
    assert excuses([stream((5,)), left, left]) == {"left": 2}
    late = RecordedStream(request(), began_s=1.0, pieces=[(4.0, (5,)), (4.5, (6,))])
    assert late.longest_gap_s == 3.0
    assert left.longest_gap_s == 0.0
