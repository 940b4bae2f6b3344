"""Constrained output through both doors, asked for by real clients: what comes matches, what cannot be is refused."""

import asyncio
import json
import re
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel, Field

from dunlin.client import AsyncClient, InvalidRequest
from services.dispatcher.doors.preprocess import helper
from services.dispatcher.doors.preprocess.lanes import LaneLimits
from services.dispatcher.doors.preprocess.pool import PreprocessLimits
from services.dispatcher.doors.preprocess.preprocessor import BodyKind
from tests.services.dispatcher.door_requests import MODEL, with_doors
from tests.services.dispatcher.doors.preprocess import silent_child
from tests.services.dispatcher.running_doors import Doors

MESSAGES: Any = [{"role": "user", "content": "Which bird is that?"}]
ENOUGH = 400
GOOD = r"[a-f]{2,5}"


class Bird(BaseModel, extra="forbid"):
    """What the client wants to know."""

    kind: Literal["heron", "dunlin"]
    legs: int = Field(ge=0, le=2)
    names: list[Literal["Ada", "Bo"]] = Field(min_length=1, max_length=2)


def test_real_clients_get_what_they_ask_for() -> None:
    async def test(cluster: Doors) -> None:
        chat = cluster.client().chat.completions
        for seed in range(4):
            parsed = await chat.parse(
                model=MODEL, messages=MESSAGES, response_format=Bird, max_completion_tokens=ENOUGH, seed=seed
            )
            assert isinstance(parsed.choices[0].message.parsed, Bird)
            assert parsed.choices[0].finish_reason == "stop"
        made = await cluster.client().completions.create(
            model=MODEL, prompt="x", n=8, max_tokens=ENOUGH, extra_body={"structured_outputs": {"regex": GOOD}}
        )
        texts = [choice.text for choice in made.choices]
        assert all(re.fullmatch(GOOD, text) for text in texts), texts
        assert len(set(texts)) > 1
        streamed = await chat.create(
            model=MODEL, messages=MESSAGES, stream=True, extra_body={"guided_choice": ["naïve 🦜", "no"]}
        )
        said = "".join([chunk.choices[0].delta.content or "" async for chunk in streamed])
        assert said in ("naïve 🦜", "no")

    with_doors(test)


def test_the_sdk_asks_for_the_same() -> None:
    async def test(cluster: Doors) -> None:
        async with AsyncClient(cluster.endpoint) as sdk:
            for asked in ({"json": Bird.model_json_schema()}, {"json": json.dumps(Bird.model_json_schema())}):
                text = await sdk.generate("x", max_tokens=ENOUGH, structured_output=asked)
                Bird.model_validate_json(text.text)
            text = await sdk.generate("x", structured_output={"grammar": 'root ::= "a" | "b"'}, seed=3)
            assert text.text in ("a", "b")
            assert (await sdk.generate("x", structured_output={"choice": ["a"]})).text == "a"
            assert re.fullmatch(GOOD, (await sdk.generate("x", structured_output={"regex": GOOD})).text)
            with pytest.raises(InvalidRequest, match=r"structured_output\.regex: cannot be kept to"):
                await sdk.generate("x", structured_output={"regex": "a("})
            with pytest.raises(InvalidRequest, match="exactly one of json"):
                await sdk.generate("x", structured_output={"regex": "a", "choice": ["a"]})

    with_doors(test)


@pytest.mark.parametrize(
    ("field", "value", "param"),
    [
        ("guided_regex", "a(", "guided_regex"),
        ("guided_regex", r"[^\s\S]", "guided_regex"),
        ("guided_grammar", "start: nothing", "guided_grammar"),
        ("structured_outputs", {"json": {"type": "nothing"}}, "structured_outputs.json"),
        ("guided_json", {"$ref": "#/definitions/none"}, "guided_json"),
    ],
)
def test_what_cannot_be_kept_to_is_refused_by_name(field: str, value: Any, param: str) -> None:
    async def test(cluster: Doors) -> None:
        with pytest.raises(openai.BadRequestError) as caught:
            await cluster.client().completions.create(model=MODEL, prompt="x", extra_body={field: value})
        assert caught.value.param == param
        assert "cannot be kept to: " in str(caught.value)
        assert not cluster.instance.placed

    with_doors(test)


def test_a_grammar_is_compiled_once_and_never_here(monkeypatch: pytest.MonkeyPatch) -> None:
    body = json.dumps({"prompt": "x", "guided_regex": GOOD}).encode()

    async def test(cluster: Doors) -> None:
        pool, sent = cluster.gateway.preprocess_pool, list[BodyKind]()
        lane = pool._grammars._lane
        read = lane.read

        async def watched(kind: BodyKind, parts: Any) -> Any:
            sent.append(kind)
            return await read(kind, parts)

        monkeypatch.setattr(lane, "read", watched)
        for _ in range(2):
            for done in await asyncio.gather(*(pool.read(BodyKind.COMPLETION, body) for _ in range(100))):
                assert done.request.settings.sampling.grammar is not None
        assert sent == [BodyKind.GRAMMAR]

    with_doors(test)


def test_a_grammar_that_takes_too_long_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(helper, "CHILD_MODULE", silent_child.__name__)
    lane = LaneLimits(most_bytes=1 << 20, most_calls=2, room_bytes=0, nice=0, within_s=0.001)

    async def test(cluster: Doors) -> None:
        ask = cluster.client().completions.create
        with pytest.raises(openai.BadRequestError, match="too much time or memory") as caught:
            await ask(model=MODEL, prompt="x", extra_body={"guided_regex": GOOD})
        assert caught.value.param == "guided_regex"

    with_doors(test, limits=PreprocessLimits(grammars=lane))
