"""Bodies that cost a careless server much: what `benchmarks.doors.hostile_pauses` sends. Made before they are sent."""

import gzip
import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from dunlin.messages.public import ChatMessage, GenerateRequest
from dunlin.messages.types import i32
from dunlin.wire.codec import encode

MIB = 1 << 20
BODY = 8 * MIB - 1024
TEXT = "Once upon a time there was a small heron, and it stood still: patient, grey and hungry. "
CHAT, COMPLETIONS, GRPC = "/v1/chat/completions", "/v1/completions", "grpc"


@dataclass(frozen=True, slots=True)
class HostileBody:
    """So many of one body at once, to a path of the HTTP door or to Generate (`grpc`)."""

    path: str
    data: bytes
    width: int = 1
    headers: Mapping[str, str] = field(default_factory=dict)


def kinds() -> dict[str, Callable[[], HostileBody]]:
    """Each kind by its name."""
    return {**_texts(), **_shapes(), **_wide(), **_grammars(), **_grpc()}


def _texts() -> dict[str, Callable[[], HostileBody]]:
    draw = random.Random(1)
    return {
        "3 MB of text": lambda: _prompt(_long(3_000_000)),
        "3.8 MB of text, three at once": lambda: _prompt(_long(3_800_000), 3),
        "3 MB of one word": lambda: _prompt("a" * 3_000_000),
        "3 MB of random letters": lambda: _prompt("".join(draw.choices("abcdefgh", k=3_000_000))),
        "3 MB of spaces": lambda: _prompt(" " * 3_000_000),
        "combining marks": lambda: _prompt("e" + "\u0301" * 1_200_000),
        "emoji": lambda: _prompt("🐦" * 600_000),
        "escapes": lambda: HostileBody(COMPLETIONS, b'{"prompt": "' + b"\\u00e9" * (BODY // 6) + b'"}'),
        "300 KB of text, twenty at once": lambda: _prompt(_long(300_000), 20),
    }


def _shapes() -> dict[str, Callable[[], HostileBody]]:
    turn = b'{"role":"user","content":"a"},'
    return {
        "100,000 messages": lambda: _chat(turn * 100_000),
        "270,000 messages": lambda: _chat(turn * (BODY // len(turn))),
        "8 MB of [": lambda: HostileBody(COMPLETIONS, b"[" * BODY),
        "empty objects": lambda: _metadata(b"{}," * (BODY // 3) + b"{}"),
        "empty lists": lambda: _metadata(b"[]," * (BODY // 3) + b"[]"),
        "token ids": lambda: HostileBody(COMPLETIONS, b'{"prompt": [' + b"1," * (BODY // 2 - 8) + b"1]}"),
        "unknown fields": lambda: HostileBody(
            COMPLETIONS, b"{" + b",".join(b'"%d":0' % i for i in range(BODY // 12)) + b"}"
        ),
        "8 MB of model name": lambda: HostileBody(COMPLETIONS, b'{"prompt": "x", "model": "' + b"m" * BODY + b'"}'),
        "one field of 8 MB": lambda: HostileBody(COMPLETIONS, b'{"' + b"f" * BODY + b'": 1}'),
        "1 GB in 1 MB of gzip": lambda: HostileBody(COMPLETIONS, _bomb(), headers={"Content-Encoding": "gzip"}),
        "8 MB each, sixteen at once": lambda: _metadata(b"{}," * (BODY // 3) + b"{}", 16),
    }


def _wide() -> dict[str, Callable[[], HostileBody]]:
    stops = ["a" * 1_000 + str(i) for i in range(16)]
    bias = {str(token): -1.0 for token in range(1_000)}
    return {
        "8 KB, two hundred at once": lambda: _prompt(_long(8_000), 200),
        "128 choices, 16 long stop strings": lambda: _wide_call(n=128, stop=stops, max_tokens=20),
        "128 choices, 20 logprobs, whole": lambda: _wide_call(n=128, logprobs=20, max_tokens=60),
        "128 choices, 1,000 biases": lambda: _wide_call(n=128, logit_bias=bias, max_tokens=4),
        "128 choices of 900 tokens": lambda: _wide_call(n=128, prompt=[7] * 900, max_tokens=2),
        "8,000 tokens echoed, 20 logprobs": lambda: _wide_call(
            echo=True, logprobs=20, prompt=[7] * 8_000, max_tokens=1
        ),
        "64 prompts echoed, 20 logprobs, streamed": lambda: _echoed(prompt=[[7] * 200] * 64, stream=True),
    }


def _grammars() -> dict[str, Callable[[], HostileBody]]:
    wide = {"type": "object", "properties": {f"field {index}": {"type": "string"} for index in range(1_500)}}
    deep: dict[str, object] = {"type": "object"}
    for _ in range(150):
        deep = {"type": "object", "properties": {"a": deep, "b": {"anyOf": [{"type": "string"}, {"type": "null"}]}}}
    return {
        "an expression that explodes": lambda: _guided(guided_regex="((a{1,900}|b{1,900}){1,900}c){1,900}"),
        "expressions of 7 KB, fifty at once": lambda: _guided(50, guided_regex="(" + "a.*b|" * 1_400 + "c)+"),
        "a schema of 1,500 fields": lambda: _guided(guided_json=wide),
        "a schema 150 deep": lambda: _guided(guided_json=deep),
        "1,000 choices, fifty at once": lambda: _guided(50, guided_choice=[f"no. {index}" for index in range(1_000)]),
    }


def _guided(width: int = 1, **fields: object) -> HostileBody:
    return HostileBody(COMPLETIONS, json.dumps({"prompt": "x", "max_tokens": 4, **fields}).encode(), width)


def _grpc() -> dict[str, Callable[[], HostileBody]]:
    messages = tuple(ChatMessage("user", "a") for _ in range(250_000))
    return {
        "gRPC: 3.8 MB of text": lambda: _generate(prompt=_long(3_800_000)),
        "gRPC: 3.8 MB of text, three at once": lambda: _generate(3, prompt=_long(3_800_000)),
        "gRPC: 250,000 messages": lambda: _generate(messages=messages),
        "gRPC: 2,000,000 tokens": lambda: _generate(prompt_tokens=i32((1,)) * 2_000_000),
        "gRPC: 2,000,000 resumed tokens": lambda: _generate(
            prompt="x", resume_request="req-1-1", resume_tokens=i32((1,)) * 2_000_000
        ),
        "gRPC: 60 MB of text": lambda: _generate(prompt=_long(60_000_000)),
        "gRPC: 300,000 stop strings": lambda: _generate(prompt="x", stop=("stop",) * 300_000),
    }


def _long(characters: int) -> str:
    return (TEXT * (characters // len(TEXT) + 1))[:characters]


def _prompt(text: str, width: int = 1) -> HostileBody:
    return HostileBody(COMPLETIONS, json.dumps({"prompt": text, "max_tokens": 1}, ensure_ascii=False).encode(), width)


def _chat(turns: bytes) -> HostileBody:
    return HostileBody(CHAT, b'{"messages": [' + turns + b'{"role":"user","content":"a"}]}')


def _metadata(values: bytes, width: int = 1) -> HostileBody:
    body = b'{"messages": [{"role":"user","content":"a"}], "max_tokens": 1, "metadata": [' + values + b"]}"
    return HostileBody(CHAT, body, width)


def _wide_call(**fields: object) -> HostileBody:
    return HostileBody(COMPLETIONS, json.dumps({"prompt": "x", "temperature": 1.0, **fields}).encode())


def _echoed(**fields: object) -> HostileBody:
    return _wide_call(echo=True, logprobs=20, max_tokens=1, **fields)


def _generate(width: int = 1, **fields: object) -> HostileBody:
    return HostileBody(GRPC, encode(GenerateRequest(**fields)), width)  # type: ignore[arg-type]


def _bomb() -> bytes:
    return gzip.compress(b" " * MIB, 9) * 1024
