"""Paths and methods that are not served: the answer says what is, in OpenAI's shape."""

from typing import Any

import aiohttp
import pytest

from tests.services.dispatcher.door_requests import with_doors
from tests.services.dispatcher.running_doors import Doors

HERE = (
    "GET /v1/models, GET /v1/models/{model}, POST /v1/completions, POST /v1/chat/completions, GET /openapi.json, "
    "GET /health, GET /metrics, GET /version"
)


async def ask(cluster: Doors, method: str, path: str) -> tuple[int, Any, dict[str, str]]:
    async with aiohttp.ClientSession() as session, session.request(method, cluster.url + path) as answer:
        is_json = answer.content_type == "application/json" and method != "HEAD"
        return answer.status, await answer.json() if is_json else await answer.text(), dict(answer.headers)


UNKNOWN = {
    "/": "there is no /",
    "/v2/models": "there is no /v2/models",
    "/chat/completions": "there is no /chat/completions: did you mean /v1/chat/completions?",
    "/models/": "there is no /models/: did you mean /v1/models?",
    "/v1/models/": "there is no /v1/models/: leave the slash at the end away",
    "/v1/v1/models": "/v1/v1/models has /v1 twice",
    "/v1/embeddings": "OpenAI's embeddings (/v1/embeddings) are not served by dunlin",
    "/embeddings": "OpenAI's embeddings (/embeddings) are not served by dunlin",
    "/v1/uploads/upload-1": "OpenAI's uploads (/v1/uploads/upload-1) are not served by dunlin",
    "/v1/responses": "OpenAI's responses (/v1/responses) are not served",
    "/v1/evals": "OpenAI's evals (/v1/evals) are not served",
    "/v1/audio/speech": "OpenAI's audio (/v1/audio/speech) are not served",
    "/v1/" + "x" * 1000: "there is no /v1/" + "x" * 96 + "…",
}


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_an_unknown_path_says_what_is_here(method: str) -> None:
    async def test(cluster: Doors) -> None:
        for path, why in UNKNOWN.items():
            status, said, _ = await ask(cluster, method, path)
            assert status == 404, path
            error = said["error"]
            assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", None, "unknown_url")
            assert error["message"].startswith(why)
            assert error["message"].endswith(f"; here is: {HERE}")

    with_doors(test)


WRONG = {
    ("POST", "/v1/models"): "GET, HEAD, OPTIONS",
    ("DELETE", "/v1/models/builtin:tiny"): "GET, HEAD, OPTIONS",
    ("GET", "/v1/completions"): "OPTIONS, POST",
    ("PUT", "/v1/chat/completions"): "OPTIONS, POST",
}


def test_405_lists_the_allowed_methods() -> None:
    async def test(cluster: Doors) -> None:
        for (method, path), allowed in WRONG.items():
            status, said, headers = await ask(cluster, method, path)
            assert (status, said["error"]["code"], headers["Allow"]) == (405, "method_not_allowed", allowed)
            assert said["error"]["message"].startswith(f"{method} is not taken at {path}: send ")
            status, said, headers = await ask(cluster, "OPTIONS", path)
            assert (status, said, headers["Allow"]) == (204, "", allowed)

    with_doors(test)


def test_head_is_get_without_a_body() -> None:
    async def test(cluster: Doors) -> None:
        for path in ("/v1/models", "/health", "/version", "/metrics"):
            status, said, headers = await ask(cluster, "HEAD", path)
            assert (status, said) == (200, "")
            assert int(headers["Content-Length"]) > 0
        assert (await ask(cluster, "HEAD", "/nothing"))[:2] == (404, "")

    with_doors(test)
