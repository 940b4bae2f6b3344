"""Nonsense at the HTTP door: every body gets an answer in OpenAI's shape, never a 500, and the door goes on."""

import asyncio
import json
from random import Random
from typing import Any

import aiohttp
import pytest

from services.dispatcher.doors.openai.fields import CHAT_FIELDS, COMPLETION_FIELDS
from tests.services.dispatcher.door_requests import MODEL, with_doors
from tests.services.dispatcher.running_doors import Doors

NAMES = sorted({*COMPLETION_FIELDS, *CHAT_FIELDS, "x"} - {"model", "prompt", "messages"})
BODIES = 150


def value(random: Random, depth: int = 0) -> Any:
    """Something that JSON can spell, more often odd than not."""
    kinds = 9 if depth < 3 else 7
    match random.randrange(kinds):
        case 0:
            return random.choice([None, True, False])
        case 1:
            return random.choice([0, 1, -1, 2, 20, 2**31, 2**63, -(2**63), 10**30])
        case 2:
            return random.choice([0.5, -0.5, 1.0, 1e308, -1e308, 1e-320])
        case 3 | 4:
            return "".join(random.choices("ab 🐦\ud800\x00\n<|end|>{%", k=random.randrange(12)))
        case 5:
            return [random.randrange(4096) for _ in range(random.randrange(4))]
        case 6:
            return [{"role": random.choice(["user", "system", "?"]), "content": value(random, 3)}]
        case 7:
            return [value(random, depth + 1) for _ in range(random.randrange(4))]
    return {random.choice("abc"): value(random, depth + 1) for _ in range(random.randrange(4))}


def body(random: Random, what: str) -> bytes:
    fields = {name: value(random) for name in random.sample(NAMES, random.randrange(5))}
    prompt = (
        value(random) if random.random() < 0.5 else [{"role": "user", "content": "x"}] if what == "messages" else "x"
    )
    spelled = json.dumps({"model": MODEL, "max_tokens": 2, what: prompt, **fields}).encode()
    if random.random() < 0.2:
        cut = random.randrange(len(spelled))
        spelled = spelled[:cut] + random.randbytes(2) + spelled[cut + 1 :]
    return spelled


@pytest.mark.parametrize(("path", "what"), [("/v1/completions", "prompt"), ("/v1/chat/completions", "messages")])
def test_nonsense_is_answered(path: str, what: str) -> None:
    async def test(cluster: Doors) -> None:
        random = Random(path)
        seen: dict[int, int] = {}
        async with aiohttp.ClientSession(cluster.url, headers={"Content-Type": "application/json"}) as session:
            for _ in range(BODIES):
                sent = body(random, what)
                async with session.post(path, data=sent) as answer:
                    text = await answer.text()
                    seen[answer.status] = seen.get(answer.status, 0) + 1
                    assert answer.status in (200, 400, 504), (sent, text)
                    if answer.status == 400:
                        assert set(json.loads(text)["error"]) == {"message", "type", "param", "code"}
        assert min(seen[200], seen[400]) > BODIES // 20, seen
        while len(cluster.core.journal):
            await asyncio.sleep(0)

    with_doors(test)
