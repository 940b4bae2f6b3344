"""What a helper answers comes back as it was; bytes that it did not make are refused, and never objects."""

from dataclasses import fields, replace

import pytest

from dunlin.limits import InvalidField
from dunlin.messages.door import RejectionCode
from dunlin.messages.types import Grammar, GrammarKind, RequestClass, SamplingParams, f32, i32
from services.dispatcher.admission.refusals import DoorError, MalformedRequest
from services.dispatcher.doors.generation.idempotency import RetryIdentity
from services.dispatcher.doors.generation.settings import RequestSettings
from services.dispatcher.doors.openai.request import ParsedRequest
from services.dispatcher.doors.preprocess.codec import decode, encode
from services.dispatcher.doors.preprocess.preprocessor import Preprocessed
from services.dispatcher.doors.tools.request import ToolUse

GRAMMAR = Grammar(GrammarKind.REGEX, "naïve|\U0001f600")
CONSTRAINTS = GRAMMAR, 5, i32([7, 8]), i32([9, 10, 11]), i32([2, 3])
SAMPLING = SamplingParams(0.5, 7, 0.9, 0.1, 0.2, 0.3, 1.1, 11, 2, 3, i32([4, 5]), f32([0.1, -100.0]), *CONSTRAINTS, 4)
STOPS = ("\n", "\U0001f600 \x00")
SETTINGS = RequestSettings(
    SAMPLING, -9, 12, STOPS, i32([6]), True, 1.5, RequestClass.BATCH, "acme", 0.5, 0.05, ("bad", "worse"), "ada"
)
REQUEST = ParsedRequest(
    (), SETTINGS, "m", 3, True, True, True, "guided_regex", ToolUse((), True, "f", False), True, True, 5
)
PREPROCESSED = Preprocessed(
    REQUEST, (i32([1, 2, 3]), i32([]), i32([1 << 30])), RetryIdentity("n", "req-1-1", i32([8]), 2), True
)


def through(outcome: Preprocessed | InvalidField | DoorError) -> Preprocessed | InvalidField | DoorError:
    return decode(bytearray(b"".join(encode(outcome))))


def test_every_field_comes_back() -> None:
    for made, default in ((SAMPLING, SamplingParams()), (SETTINGS, RequestSettings()), (REQUEST, ParsedRequest(()))):
        same = [one.name for one in fields(made) if getattr(made, one.name) == getattr(default, one.name)]
        assert same in ([], ["prompts"]), "a field with its default value shows nothing"
    assert through(PREPROCESSED) == PREPROCESSED
    assert through(Preprocessed(ParsedRequest(()), ())) == Preprocessed(ParsedRequest(()), ())


@pytest.mark.parametrize(
    "error",
    [
        InvalidField("messages.0", "must be an object"),
        DoorError(RejectionCode.TOO_LONG, "too long", "prompt", 1.5),
        MalformedRequest("no JSON"),
    ],
)
def test_errors_come_back(error: InvalidField | DoorError) -> None:
    decoded = through(error)
    assert (type(decoded), str(decoded), vars(decoded)) == (type(error), str(error), vars(error))
    if isinstance(error, DoorError):
        preprocessed = through(replace(PREPROCESSED, refused=error))
        assert isinstance(preprocessed, Preprocessed)
        with pytest.raises(type(error), match=str(error)) as raised:
            preprocessed.raise_if_refused()
        assert vars(raised.value) == vars(error)


@pytest.mark.parametrize("cut", [0, 4, 9, 60, -1, -4])
def test_bytes_that_are_cut_are_refused(cut: int) -> None:
    whole = b"".join(encode(PREPROCESSED))
    with pytest.raises((ValueError, KeyError, TypeError)):
        decode(whole[:cut])


def test_bytes_too_many_are_refused() -> None:
    with pytest.raises(ValueError, match="where 20 were announced"):
        decode(b"".join(encode(PREPROCESSED)) + bytes(4))
