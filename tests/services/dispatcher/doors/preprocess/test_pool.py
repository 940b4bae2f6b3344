"""Large calls: read in helper processes and never on the event loop, bounded in number, bytes and time."""

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from dunlin.limits import MOST_BODY_BYTES, InvalidField
from dunlin.messages.public import ChatMessage, GenerateRequest
from dunlin.messages.types import i32
from dunlin.wire.codec import encode
from services.dispatcher.admission.refusals import DoorError
from services.dispatcher.doors.generation.prompts import PromptEncoder
from services.dispatcher.doors.preprocess import helper, preprocessor
from services.dispatcher.doors.preprocess.lanes import LaneLimits
from services.dispatcher.doors.preprocess.pool import PreprocessLimits, PreprocessPool
from services.dispatcher.doors.preprocess.preprocessor import BodyKind, Preprocessed, Preprocessor
from tests.services.dispatcher.doors.preprocess import silent_child
from tests.services.dispatcher.running_doors import model

LANE = LaneLimits(most_bytes=1 << 20, most_calls=2, room_bytes=1_000, nice=0, within_s=60.0)
ALL_LARGE = PreprocessLimits(inline_bytes=0, lanes=(LANE,))
ADAPTERS = {"terse": "aa", "kind one": "bb"}
BODIES: list[tuple[BodyKind, bytes]] = [
    (
        BodyKind.COMPLETION,
        b'{"prompt": "Once upon a time", "stop": ["x"], "logit_bias": {"5": 1.5}, "n": 3, "seed": 9}',
    ),
    (BodyKind.COMPLETION, b'{"prompt": [[1, 2, 3], "and a text"], "stream": true, "model": "builtin:tiny"}'),
    (BodyKind.COMPLETION, b'{"prompt": "x", "model": "another"}'),
    (BodyKind.CHAT, b'{"messages": [{"role": "user", "content": "Hi"}], "model": "terse"}'),
    (BodyKind.GENERATE, encode(GenerateRequest(prompt="Once", model="kind one"))),
    (BodyKind.CHAT, b'{"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}'),
    (BodyKind.GENERATE, encode(GenerateRequest(prompt="Once", stop=("x",), idempotency_key="k"))),
    (BodyKind.GENERATE, encode(GenerateRequest(messages=(ChatMessage("user", "Hi"),), temperature=0.5))),
    (
        BodyKind.GENERATE,
        encode(GenerateRequest(prompt_tokens=i32((1, 2)), resume_request="req-1-1", resume_tokens=i32((3, 4)))),
    ),
]
WRONG: list[tuple[BodyKind, bytes]] = [
    (BodyKind.COMPLETION, b'{"prompt": "x", "wrong": 1}'),
    (BodyKind.COMPLETION, b'{"prompt": ""}'),
    (BodyKind.COMPLETION, b'{"prompt": "\\ud800"}'),
    (BodyKind.COMPLETION, b"[" * 100_000),
    (BodyKind.COMPLETION, b'{"prompt": [99999999]}'),
    (BodyKind.CHAT, b'{"messages": [{"role": "robot", "content": "x"}]}'),
    (BodyKind.CHAT, b'{"messages": NaN}'),
    (BodyKind.GENERATE, b"\xff\xff"),
    (BodyKind.GENERATE, encode(GenerateRequest())),
    (BodyKind.GENERATE, encode(GenerateRequest(prompt="heron " * 5_000))),
]


def with_pool(test: Callable[[PreprocessPool], Awaitable[None]], limits: PreprocessLimits = ALL_LARGE) -> None:
    async def run() -> None:
        served = model(adapters=ADAPTERS)
        pool = PreprocessPool(served, PromptEncoder(served), limits)
        try:
            async with asyncio.timeout(300):
                await test(pool)
        finally:
            pool.shut_down()

    asyncio.run(run())


def outcome(call: Callable[[], Preprocessed]) -> Any:
    """What comes of it, so that two can be compared."""
    try:
        return comparable(call())
    except (InvalidField, DoorError) as error:
        return comparable(error)


def comparable(result: Preprocessed | InvalidField | DoorError) -> Any:
    """Errors compare by identity; these by what they say."""
    if not isinstance(result, Preprocessed):
        return type(result), str(result), vars(result)
    refused = result.refused
    return replace(result, refused=None), refused and (type(refused), str(refused), vars(refused))


def test_a_helper_process_answers_what_this_one_would() -> None:
    served = model(adapters=ADAPTERS)
    here = Preprocessor(served, PromptEncoder(served))

    async def test(pool: PreprocessPool) -> None:
        for kind, data in BODIES + WRONG:
            expected = outcome(lambda kind=kind, data=data: here.read(kind, data))  # type: ignore[misc]
            try:
                result: Preprocessed | InvalidField | DoorError = await pool.read(kind, data)
            except (InvalidField, DoorError) as error:
                result = error
            assert comparable(result) == expected, data[:60]
            assert (isinstance(result, Preprocessed) and not result.refused) == ((kind, data) in BODIES)

    with_pool(test)


def test_a_large_call_is_not_read_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    parse = preprocessor._parse

    def watched(kind: BodyKind, data: bytes) -> Any:
        read.append(f"{kind.name} {len(data)} {threading.current_thread() is threading.main_thread()}")
        return parse(kind, data)

    monkeypatch.setattr(preprocessor, "_parse", watched)
    large = encode(GenerateRequest(prompt="heron " * 40))

    async def test(pool: PreprocessPool) -> None:
        await pool.read(BodyKind.GENERATE, encode(GenerateRequest(prompt="small")))
        await pool.read(BodyKind.GENERATE, large)
        await pool.read(BodyKind.COMPLETION, b'{"prompt": "' + b"a" * 200 + b'"}')

    with_pool(test, PreprocessLimits(inline_bytes=100, lanes=(LANE,)))
    assert read == ["GENERATE 7 True"]


def test_small_calls_are_read_one_a_turn_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[int] = []
    turn = 0

    async def test(pool: PreprocessPool) -> None:
        async def count() -> None:
            nonlocal turn
            while True:
                turn += 1
                await asyncio.sleep(0)

        read = pool._preprocessor.read

        def watched(kind: BodyKind, data: bytes) -> Preprocessed:
            turns.append(turn)
            return read(kind, data)

        monkeypatch.setattr(pool._preprocessor, "read", watched)
        counting = asyncio.create_task(count())
        await asyncio.gather(*(pool.read(BodyKind.COMPLETION, b'{"prompt": "x"}') for _ in range(20)))
        counting.cancel()

    with_pool(test, PreprocessLimits())
    assert len(turns) == len(set(turns)) == 20


def test_a_body_goes_to_the_first_lane_that_is_large_enough() -> None:
    lanes = tuple(LaneLimits(most, 0, 0, 0, 1.0) for most in (10, 20))

    async def test(pool: PreprocessPool) -> None:
        assert [pool._lanes.index(pool._lane(size)) for size in (1, 10, 11, 20, 21)] == [0, 0, 1, 1, 1]

    with_pool(test, PreprocessLimits(0, lanes))


def test_too_many_large_bodies_are_refused_and_a_client_that_leaves_frees_its_place() -> None:
    body, served = b'{"prompt": "x"}', model()
    here = Preprocessor(served, PromptEncoder(served))

    async def test(pool: PreprocessPool) -> None:
        lane = pool._lanes[0]
        begun, go_on = threading.Event(), threading.Event()

        def slow(kind: BodyKind, parts: Sequence[bytes]) -> Preprocessed:
            begun.set()
            go_on.wait(300)
            return here.read(kind, b"".join(parts))

        lane._helper.read = slow  # type: ignore[method-assign]
        running = asyncio.create_task(pool.read(BodyKind.COMPLETION, body))
        await asyncio.to_thread(begun.wait, 300)
        waiting = asyncio.create_task(pool.read(BodyKind.COMPLETION, body))
        await asyncio.sleep(0)
        with pytest.raises(DoorError, match="2 large requests are being read already") as refused:
            await pool.read(BodyKind.COMPLETION, body)
        assert refused.value.retry_after_s == 1.0
        for leaving in (waiting, running):
            leaving.cancel()
            await asyncio.wait([leaving])
        assert pool.calls_in_lanes == 1  # what runs in the helper counts until it is done
        go_on.set()
        while pool.calls_in_lanes:
            await asyncio.sleep(0)
        assert (await pool.read(BodyKind.COMPLETION, body)).prompts

    with_pool(test)


def test_memory_is_reserved_as_a_body_grows_and_released() -> None:
    async def test(pool: PreprocessPool) -> None:
        with pool.reserve_memory(None) as first:
            first.grow(600)
            first.grow(900)
            with pool.reserve_memory(800) as second:
                second.grow(100)
                with pytest.raises(DoorError, match="large requests of 1000 bytes are being read already"):
                    second.grow(101)
            with pool.reserve_memory(None) as third:
                third.grow(100)
        assert pool._lanes[0].memory.used == 0

    with_pool(test)


def test_small_calls_need_no_room() -> None:
    async def test(pool: PreprocessPool) -> None:
        with pool.reserve_memory(10) as held:
            held.grow(10)
            with pytest.raises(DoorError):
                held.grow(11)

    with_pool(test, PreprocessLimits(10, (LaneLimits(20, 0, 0, 0, 1.0),)))


def test_a_helper_that_dies_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    body = b'{"prompt": "x"}'
    was_sent = threading.Event()
    receive = helper.receive_frame

    def watched(connection: socket.socket) -> tuple[int, bytearray]:
        was_sent.set()
        return receive(connection)

    async def test(pool: PreprocessPool) -> None:
        await pool.read(BodyKind.COMPLETION, body)
        process = pool._lanes[0]._helper._process
        assert process is not None
        os.kill(process.pid, signal.SIGSTOP)
        monkeypatch.setattr(helper, "receive_frame", watched)
        reading = asyncio.create_task(pool.read(BodyKind.COMPLETION, body))
        # One that is dead before it is sent the call is replaced without a word.
        assert await asyncio.to_thread(was_sent.wait, 300)
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(helper.HelperLost, match="has died over this one of 15 bytes"):
            await reading
        assert (await pool.read(BodyKind.COMPLETION, body)).prompts

    with_pool(test)


def test_what_a_helper_computes_is_charged_to_no_session_but_its_own() -> None:
    async def test(pool: PreprocessPool) -> None:
        await pool.read(BodyKind.COMPLETION, b'{"prompt": "heron"}')
        process = pool._lanes[0]._helper._process
        assert process is not None
        assert os.getsid(process.pid) == process.pid

    with_pool(test)


def test_a_helper_that_is_too_slow_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(helper, "CHILD_MODULE", silent_child.__name__)

    async def test(pool: PreprocessPool) -> None:
        with pytest.raises(helper.HelperLost, match=r"did not answer within 0\.001 s"):
            await pool.read(BodyKind.COMPLETION, b'{"prompt": "x"}')
        assert pool._lanes[0]._helper._process is None

    with_pool(test, PreprocessLimits(0, (LaneLimits(1 << 20, 2, 0, 0, within_s=0.001),)))


def test_what_a_helper_reads_while_the_dispatcher_stops_gets_an_error() -> None:
    async def test(pool: PreprocessPool) -> None:
        reading = asyncio.create_task(pool.read(BodyKind.COMPLETION, b'{"prompt": "x"}'))
        while not pool.calls_in_lanes:
            await asyncio.sleep(0)
        waiting = asyncio.create_task(pool.read(BodyKind.COMPLETION, b'{"prompt": "x"}'))
        while pool.calls_in_lanes < 2:
            await asyncio.sleep(0)
        pool.shut_down()
        for one in (reading, waiting):
            with pytest.raises(DoorError, match="the dispatcher is stopping"):
                await one
        with pytest.raises(DoorError, match="the dispatcher is stopping"):
            await pool.read(BodyKind.COMPLETION, b'{"prompt": "x"}')
        assert pool._lanes[0]._helper._process is None

    with_pool(test)


def test_the_largest_body_has_a_lane() -> None:
    assert PreprocessLimits().lanes[-1].most_bytes >= MOST_BODY_BYTES
