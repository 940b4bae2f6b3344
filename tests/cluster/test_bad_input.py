"""What clients get wrong: a clear error with a status, and a cluster that goes on."""

import json
import urllib.error
import urllib.request
from typing import Any

import pytest

import dunlin
from cli.launch.cluster_process import ClusterProcess

pytestmark = pytest.mark.cluster


class Raw(str):
    """A body that is sent as it is."""


def post(cluster: ClusterProcess, path: str, body: Any) -> tuple[int, dict[str, Any]]:
    data = body if isinstance(body, Raw) else json.dumps(body)
    request = urllib.request.Request(cluster.http + path, data.encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as refusal:
        return refusal.code, json.load(refusal)


def asked(**changes: Any) -> dict[str, Any]:
    return {"prompt": "hello", "max_tokens": 2, **changes}


BAD = [
    (Raw("{"), "not valid JSON"),
    (Raw(""), "not valid JSON"),
    (Raw('{"prompt": "a", "temperature": NaN}'), "NaN"),
    (Raw("[1]"), "object"),
    ({}, "prompt"),
    (asked(frobnicate=1), "frobnicate"),
    (asked(max_tokens=-1), "max_tokens"),
    (asked(max_tokens=0), "max_tokens"),
    (asked(max_tokens="many"), "max_tokens"),
    (asked(temperature=-0.5), "temperature"),
    (asked(top_p=1.5), "top_p"),
    (asked(top_k=-3), "top_k"),
    (asked(timeout_s=-1), "timeout_s"),
    (asked(n=0), "n"),
    (asked(prompt=""), "prompt"),
    (asked(prompt=[-1]), "prompt"),
    (asked(prompt=[1 << 40]), "prompt"),
    (asked(prompt=[10_000_000]), "prompt"),
    (asked(prompt={"a": 1}), "prompt"),
]


@pytest.mark.parametrize(("body", "named"), BAD, ids=lambda value: str(value)[:40])
def test_http_says_what_is_wrong(cluster: ClusterProcess, body: Any, named: str) -> None:
    status, said = post(cluster, "/v1/completions", body)
    assert status == 400
    assert named in said["error"]["message"] + str(said["error"]["param"])
    assert said["error"]["type"] == "invalid_request_error"


def test_a_prompt_too_long_is_told_the_limit(cluster: ClusterProcess) -> None:
    with dunlin.Client(cluster.grpc) as client:
        limit = client.info().max_positions
    status, said = post(cluster, "/v1/completions", asked(prompt=[5] * (limit + 1)))
    assert status == 400
    assert said["error"]["code"] == "context_length_exceeded"
    assert str(limit) in said["error"]["message"]


def test_another_model_is_not_here(cluster: ClusterProcess) -> None:
    status, said = post(cluster, "/v1/completions", asked(model="gpt-17"))
    assert (status, said["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"max_tokens": -1}, "max_tokens"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": -1.0}, "temperature"),
        ({"top_p": float("inf")}, "top_p"),
        ({"timeout_s": float("nan")}, "timeout_s"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": [-5]}, "token id -5"),
    ],
    ids=str,
)
def test_grpc_says_what_is_wrong(cluster: ClusterProcess, changes: dict[str, Any], named: str) -> None:
    with dunlin.Client(cluster.grpc) as client, pytest.raises(dunlin.client.InvalidRequest, match=named):
        client.generate(**{"prompt": "hello", "max_tokens": 2, **changes})


def test_after_all_that_it_still_serves(cluster: ClusterProcess) -> None:
    status, said = post(cluster, "/v1/completions", asked(ignore_eos=True))
    assert (status, said["usage"]["completion_tokens"]) == (200, 2)
