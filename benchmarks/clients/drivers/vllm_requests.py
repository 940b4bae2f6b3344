"""The request functions of `vllm bench serve`, loaded by themselves out of vLLM's wheel: no engine, no torch.

This stands for `vllm bench serve`: the bytes and the reading of answers are vLLM's own, the loop around them is not.
"""

import importlib.util
import sys
import sysconfig
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.clients.drivers.checks import PROMPT, Checks

PLACE = "vllm/benchmarks/lib/endpoint_request_func.py"
FUNCTIONS = {
    "/v1/completions": "async_request_openai_completions",
    "/v1/chat/completions": "async_request_openai_chat_completions",
}
TOKENS = 8


def main() -> int:
    """The command."""
    checks = Checks()
    vllm = _load(Path(sysconfig.get_paths()["purelib"]) / PLACE)

    async def ask(path: str, **more: Any) -> bool:
        asked = vllm.RequestFuncInput(
            prompt=PROMPT, api_url=checks.url + path, prompt_len=4, output_len=TOKENS, model=checks.model,
            ignore_eos=True, request_id="bench-1", **more,
        )  # fmt: skip
        async with aiohttp.ClientSession() as session:
            answer = await getattr(vllm, FUNCTIONS[path])(asked, session)
        assert answer.success, answer.error
        return bool(answer.output_tokens == TOKENS and answer.ttft > 0 and answer.itl)

    for path in FUNCTIONS:
        checks.check(path, partial(ask, path))
        checks.check(f"{path} greedy", partial(ask, path, extra_body={"temperature": 0.0}))
    checks.check("logprobs", lambda: ask("/v1/completions", logprobs=3))
    return checks.finish()


def _load(file: Path) -> Any:
    spec = importlib.util.spec_from_file_location("endpoint_request_func", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    sys.exit(main())
