"""The preprocessor: bodies become checked requests with tokens, or errors that name what is wrong."""

import json
from itertools import pairwise

import pytest

from dunlin.limits import InvalidField
from dunlin.messages.door import RejectionCode
from dunlin.messages.public import GenerateRequest
from dunlin.wire.codec import encode
from services.dispatcher.admission.refusals import DoorError, MalformedRequest
from services.dispatcher.doors.generation.prompts import PromptEncoder
from services.dispatcher.doors.preprocess.preprocessor import BodyKind, Preprocessor, read_json
from tests.services.dispatcher.running_doors import model


def preprocessor() -> Preprocessor:
    served = model()
    return Preprocessor(served, PromptEncoder(served))


def test_a_body_becomes_tokens_and_its_text_is_not_kept() -> None:
    done = preprocessor().read(BodyKind.COMPLETION, b'{"prompt": [[1, 2], [3]], "max_tokens": 5}')
    assert [list(tokens) for tokens in done.prompts] == [[1, 2], [3]]
    assert (done.request.prompts, done.request.settings.max_tokens, done.is_chat) == ((), 5, False)
    assert preprocessor().read(BodyKind.CHAT, b'{"messages": [{"role": "user", "content": "x"}]}').is_chat


def test_the_retry_identity_comes_from_the_grpc_request() -> None:
    body = encode(GenerateRequest(prompt="x", idempotency_key="k", resume_request="req-1-2"))
    retry = preprocessor().read(BodyKind.GENERATE, body).retry
    assert (retry.idempotency_key, retry.resume_request, list(retry.resume_tokens)) == ("k", "req-1-2", [])


def test_a_prompt_for_another_model_is_not_encoded() -> None:
    done = preprocessor().read(BodyKind.COMPLETION, b'{"prompt": [999999], "model": "another"}')
    assert (done.request.model, done.prompts, done.refused) == ("another", (), None)


def test_a_prompt_that_the_model_cannot_process_keeps_the_request() -> None:
    done = preprocessor().read(BodyKind.COMPLETION, b'{"prompt": [999999], "max_tokens": 7}')
    assert (done.request.settings.max_tokens, done.prompts) == (7, ())
    with pytest.raises(DoorError, match="outside the vocabulary") as raised:
        done.raise_if_refused()
    assert raised.value.code is RejectionCode.INVALID


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"{", "not valid JSON"),
        (b"\xff", "not valid JSON"),
        (b'{"a": NaN}', "NaN is no JSON number"),
        (b'{"a": 1, "b": {"c": 1, "c": 2}}', "'c' more than once"),
        (b"[" * 100_000, "too many objects and lists"),
        (b"1" * 5_000, "thousands of digits"),
    ],
)
def test_json_is_read_strictly(body: bytes, text: str) -> None:
    with pytest.raises(MalformedRequest, match=text) as raised:
        read_json(body)
    assert raised.value.kind == "malformed"


def test_a_bad_word_is_forbidden_as_a_text_begins_with_it_and_after_a_space() -> None:
    body = b'{"prompt": "x", "bad_words": ["heron", " stood"]}'
    sampling = preprocessor().read(BodyKind.COMPLETION, body).request.settings.sampling
    starts = [0, *sampling.bad_stops]
    words = [list(sampling.bad_tokens[start:stop]) for start, stop in pairwise(starts)]
    encode_text = model().tokenizer.encode
    assert words == [encode_text(text, add_special_tokens=False) for text in ("heron", " heron", "stood", " stood")]
    with pytest.raises(InvalidField, match="bad_words: have "):
        preprocessor().read(BodyKind.COMPLETION, json.dumps({"prompt": "x", "bad_words": MANY}).encode())


MANY = [f"{index:02}" + "🐦🦜" * 100 for index in range(60)]
