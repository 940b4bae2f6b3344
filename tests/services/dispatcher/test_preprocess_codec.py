"""What a helper answers comes back as it was; bytes that it did not make are refused, and never objects."""

from dataclasses import fields, replace

import pytest

from dunlin.limits import BadField
from dunlin.messages.door import Rejection
from dunlin.messages.types import RequestClass, Sampling, f32, i32
from services.dispatcher.again import Again
from services.dispatcher.openai_request import Asked
from services.dispatcher.preprocess import Preprocessed
from services.dispatcher.preprocess_codec import decode, encode
from services.dispatcher.refusals import DoorError, Malformed
from services.dispatcher.settings import Settings

SAMPLING = Sampling(0.5, 7, 0.9, 0.1, 0.2, 0.3, 1.1, 11, 2, 3, i32([4, 5]), f32([0.1, -100.0]))
SETTINGS = Settings(SAMPLING, -9, 12, ("\n", "\U0001f600 \x00"), i32([6]), True, 1.5, RequestClass.BATCH, "acme")
ASKED = Asked((), SETTINGS, "m", 3, True, True, True)
READ = Preprocessed(ASKED, (i32([1, 2, 3]), i32([]), i32([1 << 30])), Again("n", "req-1-1", i32([8])), True)


def through(outcome: Preprocessed | BadField | DoorError) -> Preprocessed | BadField | DoorError:
    return decode(bytearray(b"".join(encode(outcome))))


def test_every_field_comes_back() -> None:
    for made, default in ((SAMPLING, Sampling()), (SETTINGS, Settings()), (ASKED, Asked(()))):
        same = [one.name for one in fields(made) if getattr(made, one.name) == getattr(default, one.name)]
        assert same in ([], ["prompts"]), "a field with its default value shows nothing"
    assert through(READ) == READ
    assert through(Preprocessed(Asked(()), ())) == Preprocessed(Asked(()), ())


@pytest.mark.parametrize(
    "error",
    [
        BadField("messages.0", "must be an object"),
        DoorError(Rejection.TOO_LONG, "too long", "prompt", 1.5),
        Malformed("no JSON"),
    ],
)
def test_errors_come_back(error: BadField | DoorError) -> None:
    told = through(error)
    assert (type(told), str(told), vars(told)) == (type(error), str(error), vars(error))
    if isinstance(error, DoorError):
        read = through(replace(READ, refused=error))
        assert isinstance(read, Preprocessed)
        with pytest.raises(type(error), match=str(error)) as raised:
            read.check()
        assert vars(raised.value) == vars(error)


@pytest.mark.parametrize("cut", [0, 4, 9, 60, -1, -4])
def test_bytes_that_are_cut_are_refused(cut: int) -> None:
    whole = b"".join(encode(READ))
    with pytest.raises((ValueError, KeyError, TypeError)):
        decode(whole[:cut])


def test_bytes_too_many_are_refused() -> None:
    with pytest.raises(ValueError, match="where 20 were announced"):
        decode(b"".join(encode(READ)) + bytes(4))
