"""Web pages: without leave none of another origin may ask; with it, browsers are told what they must know."""

import json
from typing import Any

import aiohttp
import pytest

from services.dispatcher.doors.http.config import HttpConfig
from tests.services.dispatcher.door_requests import with_doors
from tests.services.dispatcher.doors.test_authentication import ACME, tenants
from tests.services.dispatcher.running_doors import Doors

PAGE = "https://chat.example.com"
ALLOWING = HttpConfig(origins=(PAGE, "http://localhost:3000"))
BODY = {"prompt": "x", "max_tokens": 2}


async def ask(
    cluster: Doors, method: str, path: str = "/v1/completions", **given: Any
) -> tuple[int, str, dict[str, str]]:
    body = {"json": given.pop("json")} if "json" in given else {}
    headers = {name.replace("_", "-"): value for name, value in given.items()}
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, cluster.url + path, headers=headers, **body) as answer,
    ):
        return answer.status, await answer.text(), dict(answer.headers)


@pytest.mark.parametrize("origin", ["https://evil.example", "null", f"{PAGE}.evil.example", "x" * 5000])
@pytest.mark.parametrize("http", [HttpConfig(), ALLOWING])
def test_pages_of_other_origins_are_refused_before_any_work(origin: str, http: HttpConfig) -> None:
    async def test(cluster: Doors) -> None:
        for method, path in (("POST", "/v1/completions"), ("GET", "/v1/models"), ("OPTIONS", "/v1/completions")):
            status, said, headers = await ask(cluster, method, path, Origin=origin)
            error = json.loads(said)["error"]
            assert (status, error["code"]) == (403, "origin_not_allowed")
            assert "--cors ORIGIN" in error["message"]
            assert len(error["message"]) < 300
            assert "Access-Control-Allow-Origin" not in headers
        assert cluster.instance.placed == []

    with_doors(test, http=http)


def test_the_door_s_own_origin_and_clients_without_one_need_no_leave() -> None:
    async def test(cluster: Doors) -> None:
        for headers in ({}, {"Origin": cluster.url}, {"Origin": f"https://127.0.0.1:{cluster.http_port}"}):
            status, _, said = await ask(cluster, "POST", json=BODY, **headers)
            assert status == 200
            assert "Access-Control-Allow-Origin" not in said

    with_doors(test)


def test_a_preflight_names_what_openai_s_clients_send() -> None:
    async def test(cluster: Doors) -> None:
        names = "Authorization, content-type,idempotency-key, traceparent, x-stainless-lang, X-Stainless-Retry-Count, x"
        status, said, headers = await ask(
            cluster,
            "OPTIONS",
            Origin=PAGE,
            Access_Control_Request_Method="POST",
            Access_Control_Request_Headers=names,
        )
        assert (status, said) == (204, "")
        assert headers["Access-Control-Allow-Origin"] == PAGE
        assert headers["Access-Control-Allow-Methods"] == "GET, HEAD, POST, DELETE, OPTIONS"
        taken = "authorization, content-type, idempotency-key, traceparent, x-stainless-lang, x-stainless-retry-count"
        assert headers["Access-Control-Allow-Headers"] == taken
        assert headers["Access-Control-Max-Age"] == "600"
        assert headers["Vary"] == "Origin"

    with_doors(test, http=ALLOWING, tenants=tenants())  # browsers send no key with it


@pytest.mark.parametrize("streams", [False, True])
def test_an_allowed_page_may_read_answers_and_errors(streams: bool) -> None:
    async def test(cluster: Doors) -> None:
        for body, expected in ((BODY, 200), ({}, 400)):
            status, _, headers = await ask(cluster, "POST", json={**body, "stream": streams}, Origin=PAGE)
            assert (status, headers["Access-Control-Allow-Origin"], headers["Vary"]) == (expected, PAGE, "Origin")
            exposed = headers["Access-Control-Expose-Headers"].lower()
            for name in ("x-request-id", "retry-after", "x-ratelimit-remaining-tokens", "x-should-retry"):
                assert name in exposed
        status, _, headers = await ask(cluster, "GET", "/nothing", Origin=PAGE)
        assert (status, headers["Access-Control-Allow-Origin"]) == (404, PAGE)

    with_doors(test, http=ALLOWING)


def test_without_a_key_an_allowed_page_may_read_the_refusal() -> None:
    async def test(cluster: Doors) -> None:
        status, _, headers = await ask(cluster, "POST", json=BODY, Origin=PAGE)
        assert (status, headers["Access-Control-Allow-Origin"]) == (401, PAGE)
        status, _, headers = await ask(cluster, "POST", json=BODY, Origin=PAGE, Authorization=f"Bearer {ACME}")
        assert (status, headers["Access-Control-Allow-Origin"]) == (200, PAGE)

    with_doors(test, http=ALLOWING, tenants=tenants())


def test_a_star_allows_every_page() -> None:
    async def test(cluster: Doors) -> None:
        for origin in ("https://any.example", "null"):
            status, _, headers = await ask(cluster, "POST", json=BODY, Origin=origin)
            assert (status, headers["Access-Control-Allow-Origin"]) == (200, origin)

    with_doors(test, http=HttpConfig(origins=("*",)))


def test_caches_keep_answers_for_one_origin_from_another() -> None:
    async def test(cluster: Doors) -> None:
        _, _, headers = await ask(cluster, "GET", "/v1/models")
        assert headers["Vary"] == "Origin"
        assert "Access-Control-Allow-Origin" not in headers

    with_doors(test, http=ALLOWING)
