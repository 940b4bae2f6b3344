"""The document says what the door does: the same fields, the same limits."""

from typing import Any

import pytest

from dunlin.limits import BadField, Number, Whole
from services.dispatcher.openai_fields import CHAT, COMPLETION, Fate, Field
from services.dispatcher.openai_request import chat_of, completion_of
from services.dispatcher.openapi import document
from services.dispatcher.settings import CHECKS
from tests.services.dispatcher.asking import with_doors
from tests.services.dispatcher.doors import Doors


def schema(name: str) -> dict[str, Any]:
    properties: dict[str, Any] = document()["components"]["schemas"][name]["properties"]
    return properties


@pytest.mark.parametrize(("name", "fields"), [("CompletionRequest", COMPLETION), ("ChatRequest", CHAT)])
def test_every_field_that_a_door_takes_is_told_and_no_other(name: str, fields: dict[str, Field]) -> None:
    assert set(schema(name)) == {name for name, field in fields.items() if field.fate is not Fate.REFUSED}
    assert set(CHECKS) - set(schema(name)) == {"tenant"}, "a setting that neither endpoint declares"


@pytest.mark.parametrize("name", [name for name, check in CHECKS.items() if isinstance(check, Whole | Number)])
def test_the_limits_told_are_the_limits_checked(name: str) -> None:
    told = schema("CompletionRequest")[name]["anyOf"][0]
    step = 1 if told["type"] == "integer" else 1e-6
    low, above = told.get("minimum", told.get("exclusiveMinimum")), "exclusiveMinimum" in told
    inside = [low + step if above else low, told["maximum"]]
    for value in inside:
        completion_of({"prompt": "x", name: value})
    for value in (low if above else low - 1, told["maximum"] + 1):
        with pytest.raises(BadField, match=f"^{name}: "):
            completion_of({"prompt": "x", name: value})


def test_a_message_has_the_roles_and_fields_that_are_told() -> None:
    message = schema("ChatRequest")["messages"]["items"]
    for role in message["properties"]["role"]["enum"]:
        chat_of({"messages": [{"role": role, "content": [{"type": "text", "text": "x"}], "name": "n"}]})
    with pytest.raises(BadField):
        chat_of({"messages": [{"role": "user", "content": "x", "colour": "red"}]})


def test_the_door_serves_it() -> None:
    import aiohttp

    async def test(cluster: Doors) -> None:
        async with aiohttp.ClientSession(cluster.url) as session, session.get("/openapi.json") as answer:
            assert await answer.json() == document()

    with_doors(test)
