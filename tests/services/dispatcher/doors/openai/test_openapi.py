"""The document says what the door does: the same fields, the same limits."""

from typing import Any

import pytest

from dunlin.limits import InvalidField, RealNumber, WholeNumber
from services.dispatcher.doors.generation.settings import SETTING_CHECKS
from services.dispatcher.doors.openai.fields import CHAT_FIELDS, COMPLETION_FIELDS, FieldSupport, RequestField
from services.dispatcher.doors.openai.openapi import openapi_document
from services.dispatcher.doors.openai.request import parse_chat, parse_completion
from tests.services.dispatcher.door_requests import with_doors
from tests.services.dispatcher.running_doors import Doors


def schema(name: str) -> dict[str, Any]:
    properties: dict[str, Any] = openapi_document()["components"]["schemas"][name]["properties"]
    return properties


@pytest.mark.parametrize(("name", "fields"), [("CompletionRequest", COMPLETION_FIELDS), ("ChatRequest", CHAT_FIELDS)])
def test_the_document_has_every_accepted_field_and_no_other(name: str, fields: dict[str, RequestField]) -> None:
    assert set(schema(name)) == {name for name, field in fields.items() if field.support is not FieldSupport.REFUSED}
    assert set(SETTING_CHECKS) - set(schema(name)) == {"tenant"}, "a setting that neither endpoint declares"


@pytest.mark.parametrize(
    "name", [name for name, check in SETTING_CHECKS.items() if isinstance(check, WholeNumber | RealNumber)]
)
def test_the_documented_limits_are_the_checked_ones(name: str) -> None:
    limits = schema("CompletionRequest")[name]["anyOf"][0]
    step = 1 if limits["type"] == "integer" else 1e-6
    low, above = limits.get("minimum", limits.get("exclusiveMinimum")), "exclusiveMinimum" in limits
    inside = [low + step if above else low, limits["maximum"]]
    for value in inside:
        parse_completion({"prompt": "x", "echo": True, name: value})
    for value in (low if above else low - 1, limits["maximum"] + 1):
        with pytest.raises(InvalidField, match=f"^{name}: "):
            parse_completion({"prompt": "x", "echo": True, name: value})


def test_a_message_has_the_documented_roles_and_fields() -> None:
    message = schema("ChatRequest")["messages"]["items"]
    for role in message["properties"]["role"]["enum"]:
        call = {"tool_call_id": "c"} if role == "tool" else {}
        parse_chat({"messages": [{"role": role, "content": [{"type": "text", "text": "x"}], "name": "n", **call}]})
    with pytest.raises(InvalidField):
        parse_chat({"messages": [{"role": "user", "content": "x", "colour": "red"}]})


def test_the_door_serves_it() -> None:
    import aiohttp

    async def test(cluster: Doors) -> None:
        async with aiohttp.ClientSession(cluster.url) as session, session.get("/openapi.json") as answer:
            assert await answer.json() == openapi_document()

    with_doors(test)
