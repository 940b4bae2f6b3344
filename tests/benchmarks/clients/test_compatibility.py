"""What the table of clients concludes, and that the recorder keeps what was sent: a table must be able to fail."""

import asyncio
import json
from typing import Any

import aiohttp

from benchmarks.clients.compatibility import CLIENTS, ClientUnderTest, judge, without_effect
from benchmarks.clients.recording_proxy import RecordedExchange, RecordingProxy
from tests.services.dispatcher.door_requests import with_doors
from tests.services.dispatcher.running_doors import Doors

JSON = {"Content-Type": "application/json"}
LIBRARY = ClientUnderTest("library", ("library==1.0",), ())
LOAD = ClientUnderTest("load", ("tool==1.0", "other==2"), (), is_load=True)


def exchange(status: int, **body: Any) -> RecordedExchange:
    return RecordedExchange("POST", "/v1/completions", {}, {"prompt": "x", **body}, status, b"said")


def checks(**failed: str) -> str:
    return "warning\n" + json.dumps({"passed": 3, "failed": failed}) + "\n"


def test_a_client_whose_checks_all_pass_is_well() -> None:
    row = judge(LIBRARY, 0, checks(), [exchange(200, user="ann", seed=1), exchange(400), exchange(504)])
    assert (row.version, row.requests, row.served, row.refused) == ("1.0", 3, 1, 1)
    assert (row.checks, row.broken, row.without_effect) == ("3 of 3", [], ["user"])


def test_each_of_these_is_broken() -> None:
    served = exchange(200)
    for client, code, said, exchanges in (
        (LIBRARY, 1, checks(stream="TypeError: x"), [served]),
        (LIBRARY, 1, "Traceback", [served]),
        (LIBRARY, 0, checks(), []),
        (LIBRARY, 0, checks(), [served, exchange(500)]),
        (LOAD, 0, "", [served, exchange(400)]),
        (LOAD, 3, "", [served]),
    ):
        assert len(judge(client, code, said, exchanges).broken) == 1, said
    assert judge(LOAD, 0, "", [served]).broken == []


def test_a_field_that_was_taken_without_effect_is_named_also_an_undeclared_one() -> None:
    assert without_effect(exchange(200, user="ann", priority=0, n=2, suffix=None, frobnicate=1)) == [
        "user",
        "priority",
        "frobnicate",
    ]


def test_every_client_is_pinned() -> None:
    assert all(client.version and client.version[0].isdigit() for client in CLIENTS)


def test_the_recorder_passes_everything_on_and_keeps_it() -> None:
    async def test(cluster: Doors) -> None:
        host, port = cluster.url.removeprefix("http://").split(":")
        recorder = RecordingProxy(host, int(port))
        await recorder.start()
        async with aiohttp.ClientSession(recorder.url) as session:
            for body in ({"prompt": "x", "max_tokens": 3}, {"prompt": "x", "max_tokens": 3, "stream": True}, {"n": 1}):
                async with session.post("/v1/completions", json=body, headers={"X-Sent": "yes"}) as answer:
                    await answer.read()
            async with session.post("/v1/completions", data=_pieces(), headers=JSON) as answer:
                assert answer.status == 200
            async with session.get("/health") as answer:
                await answer.read()
        await recorder.stop()
        seen = recorder.exchanges()
        assert [(one.method, one.status) for one in seen] == [
            ("POST", 200), ("POST", 200), ("POST", 400), ("POST", 200), ("GET", 200),
        ]  # fmt: skip
        assert seen[0].body == {"prompt": "x", "max_tokens": 3}
        assert seen[0].headers["x-sent"] == "yes"
        assert seen[1].answer.endswith(b"data: [DONE]\n\n")
        assert seen[3].body == {"prompt": "in pieces"}
        assert seen[4].body is None

    with_doors(test)


async def _pieces() -> Any:
    for piece in (b'{"prompt": ', b'"in pieces"}'):
        yield piece
        await asyncio.sleep(0)


def test_a_client_that_leaves_before_its_answer_has_no_status() -> None:
    async def test(cluster: Doors) -> None:
        cluster.instance.held = True
        host, port = cluster.url.removeprefix("http://").split(":")
        recorder = RecordingProxy(host, int(port))
        await recorder.start()
        there = recorder.url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(there[0], int(there[1]))
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 15"
        writer.write(head + b'\r\n\r\n{"prompt": "x"}')
        await cluster.instance.until(lambda: cluster.instance.placed)
        writer.close()
        await cluster.instance.until(lambda: cluster.instance.cancelled)
        await recorder.stop()
        assert [(one.method, one.status) for one in recorder.exchanges()] == [("POST", 0)]

    with_doors(test)
