"""API keys at both doors: a call without one is refused before its body is read; a request counts for its tenant."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import grpc
import openai
import pytest

from dunlin.auth.tenants import RequestObjectives, Tenant, hash_key
from dunlin.client import AsyncClient, InvalidRequest, NotAllowed, NotAuthenticated, QuotaExceeded
from dunlin.messages.door import Quota, RejectionCode
from dunlin.messages.types import RequestClass
from dunlin.wire.channels import open_channel
from dunlin.wire.rpc.methods import GENERATE
from services.dispatcher.admission.refusals import DoorError
from services.dispatcher.doors.authentication import Authenticator
from services.dispatcher.doors.generation.settings import RequestSettings
from tests.services.dispatcher.door_requests import MODEL, sent, with_doors
from tests.services.dispatcher.running_doors import Doors

ACME, OTHER, CLOSED = "dk-acme", "dk-other", "dk-closed"


def tenants(**limits: Any) -> tuple[Tenant, ...]:
    return (
        Tenant("acme", (hash_key(ACME), hash_key("dk-acme-2")), Quota("acme", **limits)),
        Tenant("other", (hash_key(OTHER),), Quota("other")),
        Tenant("closed", (hash_key(CLOSED),), Quota("closed"), disabled=True),
    )


def with_keys(test: Callable[[Doors], Awaitable[None]], **limits: Any) -> None:
    with_doors(test, tenants=tenants(**limits))


async def chat(cluster: Doors, key: str, **options: Any) -> Any:
    messages: Any = [{"role": "user", "content": "hi"}]
    return await cluster.client(key).chat.completions.create(**{"model": MODEL, "messages": messages, **options})


# --- the authenticator ---


def test_before_the_tenants_are_set_no_key_is_required() -> None:
    authenticator = Authenticator()
    assert authenticator.authenticate(None) is None
    assert authenticator.settings_of(RequestSettings(tenant="x"), None).tenant == "x"


def test_a_key_that_is_no_text_is_as_unknown_as_any_other() -> None:
    """As the header of a client that sends bytes outside UTF-8 is read."""

    async def test(cluster: Doors) -> None:
        asked = b"GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer \xff\r\n\r\n"
        answer = await sent(cluster, asked)
        assert answer.startswith(b"HTTP/1.1 401 "), answer

    with_keys(test)


@pytest.mark.parametrize("said", list(RequestClass))
def test_a_tenants_class_is_that_of_all_its_requests(said: RequestClass) -> None:
    authenticator = Authenticator()
    authenticator.set_tenants(
        (Tenant("night", (hash_key("dk-n"),), Quota("night"), request_class=RequestClass.BATCH), *tenants())
    )
    settings = RequestSettings(request_class=said)
    assert authenticator.settings_of(settings, "night").request_class is RequestClass.BATCH
    assert authenticator.settings_of(settings, "acme").request_class is said


def test_a_tenants_objectives_are_those_of_requests_that_have_none() -> None:
    authenticator = Authenticator()
    quick = Tenant("quick", (hash_key("dk-q"),), Quota("quick"), objectives=RequestObjectives(0.5, None))
    authenticator.set_tenants((quick, *tenants()))
    for own, expected in ((None, 0.5), (2.0, 2.0)):
        settings = authenticator.settings_of(RequestSettings(ttft_objective_s=own, tpot_objective_s=own), "quick")
        assert (settings.ttft_objective_s, settings.tpot_objective_s) == (expected, own)
    assert authenticator.settings_of(RequestSettings(), "acme").ttft_objective_s is None


@pytest.mark.parametrize("given", [f"Bearer {ACME}", f"bearer {ACME}", f"BEARER  {ACME} "])
def test_a_known_key_says_the_tenant(given: str) -> None:
    authenticator = Authenticator()
    authenticator.set_tenants(tenants())
    assert authenticator.authenticate(given) == "acme"


@pytest.mark.parametrize(
    "given", [None, "", ACME, "Bearer", "Bearer ", f"Basic {ACME}", "Bearer dk-no", "Bearer " * 99]
)
def test_what_is_no_known_key_is_not_authenticated(given: str | None) -> None:
    authenticator = Authenticator()
    authenticator.set_tenants(tenants())
    with pytest.raises(DoorError) as caught:
        authenticator.authenticate(given)
    assert caught.value.code is RejectionCode.UNAUTHENTICATED


def test_a_hash_from_the_file_is_no_key() -> None:
    authenticator = Authenticator()
    authenticator.set_tenants(tenants())
    with pytest.raises(DoorError):
        authenticator.authenticate(f"Bearer {hash_key(ACME)}")


def test_an_empty_file_of_tenants_refuses_every_key() -> None:
    authenticator = Authenticator()
    assert authenticator.set_tenants(()).tenants == ()
    with pytest.raises(DoorError):
        authenticator.authenticate(f"Bearer {ACME}")


# --- HTTP ---


def test_http_knows_its_callers() -> None:
    async def test(cluster: Doors) -> None:
        assert (await chat(cluster, ACME, max_tokens=3)).usage.completion_tokens == 3
        assert cluster.instance.placed[0].tenant == "acme"
        with pytest.raises(openai.AuthenticationError) as unknown:
            await chat(cluster, "dk-no", max_tokens=3)
        assert unknown.value.code == "invalid_api_key"
        assert unknown.value.response.headers["WWW-Authenticate"] == "Bearer"
        with pytest.raises(openai.PermissionDeniedError) as closed:
            await chat(cluster, CLOSED, max_tokens=3)
        assert "'closed' is disabled" in closed.value.message
        with pytest.raises(openai.AuthenticationError):
            await cluster.client("dk-no").models.list()
        assert len(cluster.instance.placed) == 1
        assert 'dunlin_requests_refused_total{code="unauthenticated",door="http",tenant=""} 2.0' in (
            await _metrics(cluster)
        )

    with_keys(test)


async def _metrics(cluster: Doors) -> str:
    async with aiohttp.ClientSession() as session, session.get(f"{cluster.url}/metrics") as answer:
        return await answer.text()


def test_what_tells_nothing_needs_no_key() -> None:
    async def test(cluster: Doors) -> None:
        async with aiohttp.ClientSession() as session:
            for path in ("/health", "/version", "/metrics", "/openapi.json"):
                async with session.get(cluster.url + path) as answer:
                    assert answer.status == 200, path
            for path in ("/v1/models", "/v1/models/builtin:tiny", "/v1/nothing", "//v1/models", "/%761/models", "/"):
                async with session.get(cluster.url + path) as answer:
                    assert answer.status == 401, path

    with_keys(test)


def test_without_a_key_no_body_is_waited_for() -> None:
    async def test(cluster: Doors) -> None:
        host, port = cluster.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n{")
        status = await reader.readline()
        writer.close()
        assert b" 401 " in status

    with_keys(test)


def test_http_says_when_to_come_back() -> None:
    async def test(cluster: Doors) -> None:
        await chat(cluster, ACME, max_tokens=3)
        with pytest.raises(openai.RateLimitError) as caught:
            await chat(cluster, ACME, max_tokens=3)
        assert caught.value.code == "rate_limit_exceeded"
        assert 55 <= int(caught.value.response.headers["Retry-After"]) <= 60
        await chat(cluster, OTHER, max_tokens=3)
        assert [place.tenant for place in cluster.instance.placed] == ["acme", "other"]

    with_keys(test, requests_per_minute=1)


def test_a_call_of_several_choices_is_refused_before_the_first_is_dispatched() -> None:
    async def test(cluster: Doors) -> None:
        cluster.instance.held = True
        running = asyncio.create_task(chat(cluster, ACME, max_tokens=3))
        await cluster.instance.until(lambda: len(cluster.instance.placed) == 1)
        with pytest.raises(openai.RateLimitError):
            await chat(cluster, ACME, max_tokens=3, n=3)
        with pytest.raises(openai.BadRequestError, match="4 requests at once are more than"):
            await chat(cluster, ACME, max_tokens=3, n=4)
        assert len(cluster.instance.placed) == 1
        cluster.instance.release()
        await running
        assert len((await chat(cluster, ACME, max_tokens=3, n=3)).choices) == 3

    with_keys(test, running=3)


# --- gRPC, through the SDK ---


def test_grpc_knows_its_callers() -> None:
    async def test(cluster: Doors) -> None:
        async with AsyncClient(cluster.endpoint, api_key=ACME) as client:
            assert (await client.info()).model == MODEL
            assert (await client.generate("hi", max_tokens=3)).request
            assert (await client.generate("hi", max_tokens=3, tenant="acme")).request
            with pytest.raises(NotAllowed, match="is of tenant 'acme', not of 'other'"):
                await client.generate("hi", max_tokens=3, tenant="other")
        async with AsyncClient(cluster.endpoint, api_key="") as keyless:
            for call in (keyless.info(), keyless.cancel("req-1-1"), keyless.generate("hi", max_tokens=3)):
                with pytest.raises(NotAuthenticated, match="an API key is needed"):
                    await call
        assert [place.tenant for place in cluster.instance.placed] == ["acme", "acme"]

    with_keys(test)


def test_grpc_says_when_to_come_back() -> None:
    async def test(cluster: Doors) -> None:
        async with AsyncClient(cluster.endpoint, api_key=ACME) as client:
            await client.generate([5, 6], max_tokens=8)
            with pytest.raises(QuotaExceeded, match="0 are left, 10 are needed") as caught:
                await client.generate([5, 6], max_tokens=8)
            assert 50 <= caught.value.retry_after_s <= 60
            with pytest.raises(InvalidRequest, match="more than tenant 'acme' may use in a minute"):
                await client.generate([5, 6], max_tokens=9)

    with_keys(test, tokens_per_minute=10)


def test_another_tenants_request_cannot_be_cancelled() -> None:
    async def test(cluster: Doors) -> None:
        cluster.instance.held = True
        async with (
            AsyncClient(cluster.endpoint, api_key=ACME) as acme,
            AsyncClient(cluster.endpoint, api_key=OTHER) as other,
        ):
            events = acme.stream("hi", max_tokens=50)
            request = (await anext(events)).request
            assert not await other.cancel(request)
            assert await acme.cancel(request)
            await events.aclose()

    with_keys(test)


def test_new_tenants_count_at_once() -> None:
    async def test(cluster: Doors) -> None:
        cluster.authenticator.set_tenants(tenants()[1:])
        with pytest.raises(openai.AuthenticationError):
            await chat(cluster, ACME, max_tokens=3)
        await chat(cluster, OTHER, max_tokens=3)

    with_keys(test)


def test_nothing_of_a_key_is_ever_said_back() -> None:
    async def test(cluster: Doors) -> None:
        secret = "dk-" + "s3cret" * 5
        headers = {"Authorization": f"Bearer {secret}"}
        async with aiohttp.ClientSession(headers=headers) as session:
            async with session.post(f"{cluster.url}/v1/completions", json={"prompt": "x"}) as answer:
                assert answer.status == 401
                assert "s3cret" not in await answer.text()
        async with AsyncClient(cluster.endpoint, api_key=secret) as client:
            with pytest.raises(NotAuthenticated) as caught:
                await client.info()
        assert "s3cret" not in str(caught.value)
        assert isinstance(caught.value.__cause__.__cause__, grpc.aio.AioRpcError)  # type: ignore[union-attr]

    with_keys(test)


def test_grpc_reads_no_request_without_a_key() -> None:
    async def test(cluster: Doors) -> None:
        async with open_channel(cluster.endpoint) as channel:
            call: Any = channel.stream_stream(GENERATE.path)()  # sends nothing, and never ends
            assert await call.code() is grpc.StatusCode.UNAUTHENTICATED
            assert "an API key is needed" in await call.details()
            known: Any = channel.stream_stream(GENERATE.path)(metadata=(("authorization", f"Bearer {ACME}"),))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.shield(known.code()), 0.3)
            known.cancel()

    with_keys(test)
