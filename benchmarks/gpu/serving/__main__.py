"""A cluster on this machine's GPU, as its clients see it.

    python -m benchmarks.gpu.serving [--part texts|speed|profile|all] [--out DIR]
    python -m benchmarks.gpu.serving --tiny --device cpu --out /tmp/serving

`texts`: answers through the OpenAI-compatible door, equal to those of a cluster on the CPU. `speed`: a model of an 8B's
shape with random weights, written as a checkpoint and loaded from there; many requests at once, chat alone, and chat
beside batch work and long prompts. `profile`: `dunlin profile` of that model, into a store beside the results.
Exit code 1 if a text differs or a request fails.
"""

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.gpu.plan import GPU, TINY
from benchmarks.gpu.results import Results, usual_facts
from benchmarks.gpu.serving.checkpoint import write_large_checkpoint
from benchmarks.gpu.serving.scenes import PART, ServingPlan, ServingScenes
from benchmarks.gpu.serving.scenes import TINY as TINY_SCENES
from benchmarks.gpu.serving.texts import served_texts
from benchmarks.harness.session import CampaignSession
from cli.launch.cluster_process import ClusterProcess, dunlin_command


class ServingRun:
    """One run: owns its results. The checkpoint is in `model`, or will be."""

    def __init__(self, options: argparse.Namespace, model: Path) -> None:
        self._options = options
        self._model = model
        name = options.device if options.device == "cpu" else torch.cuda.get_device_name()
        self.results = Results(name, f"python -m benchmarks.gpu.serving {' '.join(sys.argv[1:])}".strip())
        self.results.facts = usual_facts()
        self._file = self.results.file_name("serving")

    def attempt_all(self) -> None:
        """The parts that are asked for."""
        until_s = time.monotonic() + 60 * self._options.minutes
        for name, part in (("texts", self._texts), ("speed", self._speed), ("profile", self._profile)):
            if self._options.part in (name, "all"):
                self.results.attempt(name, part, until_s)
                self.results.write(self._options.out, self._file)

    def _texts(self) -> None:
        device = self._options.device
        there, here = served_texts(["--device", device, "--memory", "2GiB"]), served_texts(["--device", "cpu"])
        for name, text in here.items():
            self.results.expect(there[name] == text, f"{name}: {there[name]!r}, on the CPU {text!r}")
        self.results.put("texts", "equal to the CPU's", f"{sum(there[n] == here[n] for n in here)} of {len(here)}")
        self.results.put("texts", "an answer", there["streamed"][:120])

    def _speed(self) -> None:
        self._write_model()
        flags = ["--model", str(self._model), "--model-name", "random", "--dtype", "bf16", "--instances", "1"]
        flags += ["--device", self._options.device, "--preset", self._options.preset]
        if self._options.tiny:
            flags += ["--memory", "64MiB"]
        began_s = time.monotonic()
        with ClusterProcess(*flags, *self._options.flag) as cluster:
            self.results.put(PART, "s until ready", round(time.monotonic() - began_s, 1))
            told = [line for line in cluster.log("instance-0").splitlines() if "KV for" in line]
            self.results.put(PART, "memory", told[-1].partition(": ")[2] if told else "as --memory says")
            try:
                asyncio.run(self._scenes(cluster))
            finally:
                if self.results.failures:
                    print(cluster.output()[-2000:], cluster.log("instance-0")[-4000:], sep="\n", file=sys.stderr)

    async def _scenes(self, cluster: ClusterProcess) -> None:
        usual = ServingPlan(rate=self._options.rate, chat_s=self._options.seconds)
        plan = TINY_SCENES if self._options.tiny else usual
        async with CampaignSession(cluster) as session:
            await ServingScenes(plan, session, cluster, self.results).run()

    def _profile(self) -> None:
        """The device's cost profile, over the same checkpoint."""
        self._write_model()
        store = self._options.out / f"{self._file}.db"
        flags = ["--model", str(self._model), "--dtype", "bf16", "--device", self._options.device]
        flags += ["--out", str(store), "--points"]
        flags += ["--quick"] if self._options.tiny else ["--kv-mib", "40000", "--repeats", "4", "--passes", "1"]
        subprocess.run(dunlin_command("profile", *flags), check=True, stdout=sys.stderr)

    def _write_model(self) -> None:
        if self._model.exists():
            return
        began_s = time.monotonic()
        shape = TINY.speed if self._options.tiny else GPU.speed
        device = "cuda" if self._options.device.startswith("cuda") else "cpu"
        write_large_checkpoint(self._model, replace(shape, vocab=max(shape.vocab, 8192)), torch.device(device))
        if device == "cuda":
            torch.cuda.empty_cache()
        self.results.put(PART, "s to write the checkpoint", round(time.monotonic() - began_s, 1))


def main() -> int:
    """Run; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("texts", "speed", "profile", "all"), default="all")
    parser.add_argument("--device", default="cuda:0", help="cuda:N, or cpu")
    parser.add_argument("--preset", default="unified")
    parser.add_argument("--flag", nargs="*", default=[], help="more of `dunlin up`")
    parser.add_argument("--rate", type=float, default=ServingPlan().rate, help="chat requests a second")
    parser.add_argument("--seconds", type=float, default=ServingPlan().chat_s, help="of chat, alone and beside others")
    parser.add_argument("--tiny", action="store_true", help="a tiny model and few requests: does it run at all?")
    parser.add_argument("--model", type=Path, help="directory of the checkpoint: written if it is not there, kept")
    parser.add_argument("--out", type=Path, default=Path("docs/measurements"), metavar="DIR")
    parser.add_argument("--minutes", type=float, default=10.0, help="no part begins after so many")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dunlin-serving-") as folder:
        run = ServingRun(options, options.model or Path(folder) / "model")
        run.attempt_all()
    print(run.results.text())
    return 1 if run.results.failures else 0


if __name__ == "__main__":
    sys.exit(main())
