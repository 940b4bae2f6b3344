"""The comparison with vLLM: what each side is asked and what is made of the answers. vLLM itself is played."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer

from benchmarks.engine.peers.whole_stack import CASES, Case, Rates, VllmOffline, seconds, table

PLAYED = """
import json, os, types
print("a line of its own on standard output")

class SamplingParams(types.SimpleNamespace):
    def __init__(self, **given): super().__init__(**given)

class LLM:
    def __init__(self, checkpoint, **given):
        self.told = open(os.environ["TOLD"], "a")
        print(json.dumps([checkpoint, given]), file=self.told, flush=True)
    def generate(self, prompts, sampling, use_tqdm):
        print(json.dumps([prompts, vars(sampling)]), file=self.told, flush=True)
        tokens = [0] * (sampling.max_tokens - (sampling.max_tokens == 13))
        return [types.SimpleNamespace(outputs=[types.SimpleNamespace(token_ids=tokens)]) for _ in prompts]
"""


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a played vLLM notes what it is asked. It answers a token too few where 13 are wanted."""
    (tmp_path / "vllm.py").write_text(PLAYED)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("TOLD", str(tmp_path / "told"))
    return tmp_path / "told"


def test_vllm_is_asked_for_the_case_and_its_prints_are_no_answers(told: Path, tmp_path: Path) -> None:
    vllm = VllmOffline(Path(sys.executable), tmp_path / "model", 100)
    assert 0 < vllm.seconds(Case(3, 5, 7)) < 60
    assert 0 < vllm.seconds(Case(1, 2, 1)) < 60
    vllm.close()
    loaded, first, second = map(json.loads, told.read_text().splitlines())
    assert loaded[0] == str(tmp_path / "model")
    assert loaded[1]["max_model_len"] == max(case.prompt + case.output for case in CASES)
    assert loaded[1]["enable_prefix_caching"] is False
    assert [len(one["prompt_token_ids"]) for one in first[0]] == [5, 5, 5]
    assert all(0 <= token < 100 for one in first[0] for token in one["prompt_token_ids"])
    assert first[1] == {"temperature": 0, "max_tokens": 7, "ignore_eos": True, "detokenize": False}
    assert (len(second[0]), second[1]["max_tokens"]) == (1, 1)


@pytest.mark.usefixtures("told")
def test_a_vllm_that_ends_is_no_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vllm = VllmOffline(Path(sys.executable), tmp_path / "model", 100)
    with pytest.raises(RuntimeError, match="vLLM did not start, or ended"):
        vllm.seconds(Case(1, 2, 13))
    vllm.close()
    monkeypatch.delenv("PYTHONPATH")
    with pytest.raises(RuntimeError, match="vLLM did not start, or ended"):
        VllmOffline(Path(sys.executable), tmp_path / "model", 100)


class Door:
    """A door that gives `given` tokens for each request."""

    def __init__(self, given: int) -> None:
        self.asked: list[dict[str, Any]] = []
        self._given = given

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append(await request.json())
        return web.json_response({"usage": {"completion_tokens": self._given}})

    async def seconds(self, case: Case) -> float:
        """That the case takes at this door."""
        application = web.Application()
        application.router.add_post("/v1/completions", self.answer)
        async with TestServer(application) as server, ClientSession(server.make_url("")) as client:
            return await seconds(client, "m", 100, case)


def test_dunlin_is_asked_for_the_same() -> None:
    door = Door(7)
    assert 0 < asyncio.run(door.seconds(Case(3, 5, 7))) < 60
    prompts = [asked.pop("prompt") for asked in door.asked]
    assert [len(prompt) for prompt in prompts] == [5, 5, 5]
    assert all(0 <= token < 100 for prompt in prompts for token in prompt)
    assert door.asked == [{"model": "m", "max_tokens": 7, "temperature": 0, "ignore_eos": True}] * 3
    with pytest.raises(RuntimeError, match=r"3 × \(5, 8\): answers of \[7\] tokens"):
        asyncio.run(door.seconds(Case(3, 5, 8)))


def test_the_table_has_medians_and_ratios_of_turns() -> None:
    prefill, decode = Case(2, 1024, 1), Case(16, 128, 64)
    assert (prefill.tokens, decode.tokens) == (2048, 1024)
    found = table({prefill: Rates([100.0, 300.0, 200.0], [100.0, 100.0, 100.0]), decode: Rates([1.0], [4.0])})
    assert found.splitlines()[1:] == [
        "2 × prefill 1,024           200      100  2.00 (1.00 to 3.00)",
        "16 × (128, 64)                1        4  0.25 (0.25 to 0.25)",
    ]
