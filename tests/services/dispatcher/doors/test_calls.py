"""Every call leaves its traces: a line, a count, and for the core a refusal to record, whichever door it came to."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import aiohttp
import grpc
import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from dunlin.client import AsyncClient
from dunlin.messages.lifecycle import Closed
from dunlin.messages.public import GenerateRequest, InfoRequest
from dunlin.messages.types import RequestClass
from dunlin.wire.channels import open_channel
from dunlin.wire.rpc.methods import GENERATE, INFO, stub
from services.dispatcher.doors.http.app import HttpConfig
from services.dispatcher.doors.http.call_middleware import CallMiddleware
from tests.services.dispatcher.door_requests import MODEL, post, with_doors
from tests.services.dispatcher.doors.test_authentication import ACME, CLOSED, tenants
from tests.services.dispatcher.running_doors import Doors

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
NEVER_IN_A_LINE = "sesame"


class Lines(list[Mapping[str, Any]]):
    """A log that a test can wait for."""

    def write(self, line: Mapping[str, object]) -> None:
        assert NEVER_IN_A_LINE not in json.dumps(line)
        self.append(line)

    async def until(self, number: int) -> Mapping[str, Any]:
        async with asyncio.timeout(300):
            while len(self) < number:
                await asyncio.sleep(0.002)
        return self[number - 1]


def refusals(cluster: Doors) -> list[Closed]:
    """What the core recorded of calls that were not taken."""
    decisions, _ = cluster.host.drain(1000)
    return [one.message for one in decisions if isinstance(one.message, Closed) and not one.message.request]


def counted(cluster: Doors, name: str) -> dict[str, float]:
    """Labels and value of each sample of a family that is not 0."""
    page = cluster.gateway.metrics.page().decode()
    samples = [line for line in page.splitlines() if line.startswith(name + "{")]
    return {line.split("{")[1].split("}")[0]: float(line.rpartition(" ")[2]) for line in samples}


def refused(code: str, door: str = "http", tenant: str = "") -> dict[str, float]:
    return {f'code="{code}",door="{door}",tenant="{tenant}"': 1.0}


# --- successes ---


@pytest.mark.parametrize("stream", [False, True])
def test_an_http_call_is_one_line(stream: bool) -> None:
    log = Lines()

    async def test(cluster: Doors) -> None:
        cluster.instance.reuses = 1
        messages = [{"role": "user", "content": NEVER_IN_A_LINE}]
        body = {"model": MODEL, "messages": messages, "max_tokens": 5, "n": 2, "stream": stream}
        headers = {"Authorization": f"Bearer {ACME}", "traceparent": TRACE, "User-Agent": "pytest"}
        async with aiohttp.ClientSession(headers=headers) as session:
            async with session.post(f"{cluster.url}/v1/chat/completions?key={NEVER_IN_A_LINE}", json=body) as answer:
                text = await answer.text()
                named = answer.headers["X-Request-Id"].split(",")
        found = dict(await log.until(1))
        prompt_tokens = len(cluster.instance.placed[0].tokens)
        assert stream or json.loads(text)["usage"]["prompt_tokens"] == prompt_tokens
        assert 0 <= found.pop("queue_s") <= found.pop("first_token_s") <= found.pop("duration_s")
        assert abs(found.pop("time_s") - cluster.host.clock()) < 60
        assert found == {
            "door": "http",
            "method": "POST",
            "path": "/v1/chat/completions",
            "status": 200,
            "error": None,
            "client": "127.0.0.1",
            "agent": "pytest",
            "tenant": "acme",
            "class": "interactive",
            "model": MODEL,
            "requests": named,
            "finish": ["length", "length"],
            "prompt_tokens": prompt_tokens,
            "cached_tokens": 2,
            "output_tokens": 10,
            "traceparent": TRACE,
        }
        assert counted(cluster, "dunlin_calls_total") == {'door="http",path="/v1/chat/completions",status="200"': 1.0}
        assert counted(cluster, "dunlin_requests_total") == {
            'class="interactive",door="http",finish="length",tenant="acme"': 2.0
        }
        assert counted(cluster, "dunlin_requests_refused_total") == {}

    with_doors(test, log=log, tenants=tenants())


def test_a_grpc_call_is_one_line() -> None:
    log = Lines()

    async def test(cluster: Doors) -> None:
        async with AsyncClient(cluster.endpoint) as client:
            result = await client.generate("hi", max_tokens=3, tenant="made-up", request_class=RequestClass.BATCH)
            await client.info()
        found = dict(await log.until(2))
        assert (found["path"], found["status"]) == ("Info", "OK")
        assert "requests" not in found, "it generates nothing"
        found = dict(log[0])
        assert found["first_token_s"] <= found["duration_s"]
        assert {name: found[name] for name in ("door", "path", "status", "client", "tenant", "class", "requests")} == {
            "door": "grpc",
            "path": "Generate",
            "status": "OK",
            "client": "127.0.0.1",
            "tenant": "made-up",
            "class": "batch",
            "requests": [result.request],
        }
        assert (found["finish"], found["output_tokens"], found["error"]) == (["length"], 3, None)
        assert counted(cluster, "dunlin_request_queue_time_seconds_count") == {
            'class="batch",door="grpc",tenant=""': 1.0
        }

    with_doors(test, log=log)


# --- refusals ---

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        (TEXT, {"prompt": "x", "max_tokens": 5_000}, 400, "too_long"),
        (TEXT, {"prompt": [5] * 2_000}, 400, "too_long"),
        (TEXT, {"prompt": ""}, 400, "invalid"),
        (CHAT, {"messages": []}, 400, "invalid"),
        (CHAT, {"messages": [{"role": "user", "content": "x"}], "temperature": -1}, 400, "invalid"),
        (TEXT, {"prompt": "x", "model": "m" * 10_000}, 404, "unknown_model"),
        (TEXT, b"{", 400, "malformed"),
        (TEXT, b'{"prompt": "' + b"x" * 3_000 + b'"}', 413, "too_large"),
    ],
)
def test_what_the_http_door_refuses_leaves_a_line_a_count_and_a_record(
    path: str, body: Any, status: int, code: str
) -> None:
    log = Lines()

    async def test(cluster: Doors) -> None:
        assert (await post(cluster, path, body))[0] == status
        found = await log.until(1)
        assert (found["status"], found["error"], found["path"], found["requests"]) == (status, code, path, [])
        assert len(found["model"] or "") <= 256
        assert counted(cluster, "dunlin_requests_refused_total") == refused(code)
        assert cluster.core.report().refused_total == 1
        (refusal,) = refusals(cluster)
        assert (refusal.error, refusal.trace) == (code, "")
        origin = refusal.origin
        assert origin is not None
        assert (origin.door, origin.operation) == ("http", "chat" if path == CHAT else "text_completion")

    with_doors(test, log=log, http=HttpConfig(max_body_bytes=20_000 if code != "too_large" else 2_000))


def test_what_the_core_refuses_is_counted_once() -> None:
    log = Lines()

    async def test(cluster: Doors) -> None:
        cluster.instance.held = True
        async with aiohttp.ClientSession() as session:
            running = asyncio.create_task(session.post(f"{cluster.url}{TEXT}", json={"prompt": "x"}))
            await asyncio.sleep(0)
            while not len(cluster.core.journal):
                await asyncio.sleep(0.002)
            assert (await post(cluster, TEXT, {"prompt": "x", "n": 2}))[0] == 429
            found = await log.until(1)
            assert (found["status"], found["error"], found["prompt_tokens"]) == (429, "full", 1)
            running.cancel()
            left = await log.until(2)
        assert (left["status"], left["error"], left["finish"]) == (499, None, ["cancelled"])
        assert counted(cluster, "dunlin_requests_refused_total") == refused("full")
        assert [refusal.error for refusal in refusals(cluster)] == ["full"]
        assert cluster.core.report().refused_total == 1

    with_doors(test, log=log, serving=False, admission__max_queued=1)


def test_calls_with_unknown_keys_are_refused_without_a_tenant() -> None:
    log = Lines()

    async def test(cluster: Doors) -> None:
        assert (await post(cluster, TEXT, {"prompt": "x"}))[0] == 401
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {CLOSED}"}) as session:
            async with session.post(f"{cluster.url}{TEXT}", json={"prompt": "x"}) as answer:
                assert answer.status == 403
        async with open_channel(cluster.endpoint) as channel:
            with pytest.raises(grpc.aio.AioRpcError):
                await stub(channel, GENERATE)(GenerateRequest(prompt="x")).read()
            with pytest.raises(grpc.aio.AioRpcError):
                await stub(channel, INFO)(InfoRequest())
        found = await log.until(4)
        assert [(one["door"], one["status"], one["error"]) for one in log] == [
            ("http", 401, "unauthenticated"),
            ("http", 403, "forbidden"),
            ("grpc", "UNAUTHENTICATED", "unauthenticated"),
            ("grpc", "UNAUTHENTICATED", "unauthenticated"),
        ]
        assert (found["path"], found["tenant"]) == ("Info", "")
        errors = [refusal.error for refusal in refusals(cluster)]
        assert errors == ["unauthenticated", "forbidden", "unauthenticated"], "`Info` generates nothing"

    with_doors(test, log=log, tenants=tenants())


@pytest.mark.parametrize(
    ("request_", "status", "code"),
    [
        (b"\xff\xff\xff", "INVALID_ARGUMENT", "malformed"),
        (GenerateRequest(), "INVALID_ARGUMENT", "invalid"),
        (GenerateRequest(prompt="x", max_tokens=5_000), "OUT_OF_RANGE", "too_long"),
    ],
)
def test_what_the_grpc_door_refuses(request_: Any, status: str, code: str) -> None:
    log = Lines()

    async def test(cluster: Doors) -> None:
        async with open_channel(cluster.endpoint) as channel:
            raw = isinstance(request_, bytes)
            call: Any = channel.unary_stream(GENERATE.path) if raw else stub(channel, GENERATE)
            with pytest.raises(grpc.aio.AioRpcError):
                await call(request_, metadata=(("traceparent", TRACE),)).read()
        found = await log.until(1)
        assert (found["status"], found["error"], found["client"]) == (status, code, "127.0.0.1")
        assert counted(cluster, "dunlin_requests_refused_total") == refused(code, "grpc")
        (refusal,) = refusals(cluster)
        assert (refusal.error, refusal.trace) == (code, TRACE)

    with_doors(test, log=log)


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing", 404, "unknown_url"),
        ("DELETE", "/v1/models", 405, "method_not_allowed"),
        ("GET", "/version", 200, None),
    ],
)
def test_paths_that_generate_nothing(method: str, path: str, status: int, code: str | None) -> None:
    log = Lines()

    async def test(cluster: Doors) -> None:
        async with aiohttp.ClientSession() as session, session.request(method, cluster.url + path) as answer:
            assert answer.status == status
        found = await log.until(1)
        assert (found["status"], found["error"], found["method"], found["path"]) == (status, code, method, path)
        (labels,) = counted(cluster, "dunlin_calls_total")
        assert labels == f'door="http",path="{path if code is None else "other"}",status="{status}"'
        assert refusals(cluster) == []

    with_doors(test, log=log)


def test_probes_are_counted_and_not_logged() -> None:
    log = Lines()

    async def test(cluster: Doors) -> None:
        async with aiohttp.ClientSession() as session:
            for path in ("/health", "/metrics", "/version"):
                async with session.get(cluster.url + path) as answer:
                    assert answer.status == 200
        assert (await log.until(1))["path"] == "/version"
        assert len(counted(cluster, "dunlin_calls_total")) == 3

    with_doors(test, log=log)


def test_a_client_that_leaves_in_the_middle_of_its_answer_is_499() -> None:
    log = Lines()

    async def test(cluster: Doors) -> None:
        cluster.instance.held = True
        async with aiohttp.ClientSession() as session:
            body = {"prompt": "x", "stream": True, "max_tokens": 50}
            answer = await session.post(f"{cluster.url}{TEXT}", json=body)
            cluster.instance.one()
            await answer.content.readline()
            answer.close()
        found = await log.until(1)
        assert (found["status"], found["finish"], found["output_tokens"]) == (499, ["cancelled"], 1)
        assert counted(cluster, "dunlin_requests_refused_total") == {}

    with_doors(test, log=log)


def test_a_write_to_a_client_that_has_just_left_is_no_error_of_ours() -> None:
    log = Lines()

    async def test(cluster: Doors) -> None:
        async def write(request: web.Request) -> web.StreamResponse:
            raise ConnectionResetError("Cannot write to closing transport")

        access = CallMiddleware(cluster.gateway)
        request = make_mocked_request("POST", TEXT)
        answer = await access.record_call(request, lambda inner: access.record_error(inner, write))
        assert (answer.status, log[0]["status"], log[0]["error"]) == (499, 499, None)

    with_doors(test, log=log)


def test_a_grpc_client_that_leaves_is_cancelled() -> None:
    log = Lines()

    async def test(cluster: Doors) -> None:
        cluster.instance.held = True
        async with open_channel(cluster.endpoint) as channel:
            call = stub(channel, GENERATE)(GenerateRequest(prompt="x"))
            await call.read()
            call.cancel()
            found = await log.until(1)
        assert (found["status"], found["error"], found["finish"]) == ("CANCELLED", None, ["cancelled"])

    with_doors(test, log=log)


@pytest.mark.parametrize(("stream", "status"), [(True, 200), (False, 504)])
def test_an_answer_that_fails_says_why_though_its_status_was_sent(stream: bool, status: int) -> None:
    log = Lines()

    async def test(cluster: Doors) -> None:
        body = {"prompt": "x", "stream": stream, "timeout_s": 0.05}
        async with aiohttp.ClientSession() as session, session.post(f"{cluster.url}{TEXT}", json=body) as answer:
            assert "deadline_exceeded" in await answer.text()
        found = await log.until(1)
        assert (found["status"], found["error"], found["finish"]) == (status, "deadline_exceeded", ["deadline"])
        assert counted(cluster, "dunlin_requests_refused_total") == {}, "it was taken"
        assert refusals(cluster) == []

    with_doors(test, log=log, serving=False)
