"""The engine as a contestant: `EngineRunner` in this process, driven by messages, two steps ahead.

    python -m benchmarks.engine.contestants.engine TREE

TREE is the checkout whose engine is measured. The loop of `dunlin.engine.process` without the socket: what reading a
frame costs is left out, what making a `Step` costs is in.
"""

import os
import sys
import time
from array import array
from pathlib import Path
from typing import Any

from benchmarks.engine.contestants.serve import serve
from benchmarks.engine.contestants.trees import EngineParts, engine_parts
from benchmarks.engine.workloads import Plan, PlannedStep, Setup

STEPS_AHEAD = 2


class EngineContestant:
    """Owns the runner and the arena's memfd."""

    def __init__(self, parts: EngineParts, setup: Setup) -> None:
        self._parts = parts
        self._plans = {plan.workload.name: plan for plan in setup.plans}
        fd = os.memfd_create("dunlin-benchmark-arena")
        loaded = parts.load(Path(setup.checkpoint), "bfloat16", setup.kv_bytes, parts.numerics(), fd)
        self._runner = parts.runner(loaded.decoder, loaded.slots, time.perf_counter, **parts.options(loaded.decoder))
        self._numbers = 1
        for plan in setup.plans:
            self._compute(plan, plan.fill, cached=False)

    def run(self, name: str) -> list[int]:
        """See `Contestant`."""
        plan = self._plans[name]
        return self._compute(plan, plan.steps, cached=True)

    def _compute(self, plan: Plan, steps: list[PlannedStep], cached: bool) -> list[int]:
        """Open the plan's sequences, run the steps, close; the first token of each sequence that sampled."""
        base = self._numbers
        self._numbers += len(plan.prompts)
        for index, prompt in enumerate(plan.prompts):
            self._open(base + index, prompt, plan.workload.outputs, plan.cached[index] if cached else [])
        texts: dict[int, list[int]] = {}
        outstanding = 0
        for step in steps:
            self._submit(base, step)
            outstanding += 1
            while outstanding >= STEPS_AHEAD:
                outstanding -= self._work(texts)
        while outstanding:
            outstanding -= self._work(texts)
        for index in range(len(plan.prompts)):
            self._tell(self._parts.close(base + index))
        wanted, got = sum(sum(step.sample) for step in steps), sum(map(len, texts.values()))
        if got != wanted:
            raise RuntimeError(f"{plan.workload.name}: {got} tokens were sampled, not {wanted}")
        return [texts[sequence][0] for sequence in sorted(texts)]

    def _open(self, sequence: int, prompt: list[int], outputs: int, extents: list[tuple[int, int]]) -> None:
        self._tell(
            self._parts.open(
                sequence=sequence,
                tokens=array("i", prompt),
                prompt_tokens=len(prompt),
                max_tokens=outputs,
                sampling=self._parts.sampling(temperature=0.0),
                extent_start=array("q", [start for start, _ in extents]),
                extent_length=array("q", [length for _, length in extents]),
            )
        )

    def _submit(self, base: int, planned: PlannedStep) -> None:
        self._numbers += 1
        self._tell(
            self._parts.step(
                step=self._numbers,
                sequence=array("q", [base + index for index in planned.sequence]),
                start=array("q", planned.start),
                stop=array("q", planned.stop),
                sample=array("b", planned.sample),
                extent_row=array("i", planned.extent_row),
                extent_start=array("q", planned.extent_start),
                extent_length=array("q", planned.extent_length),
            )
        )

    def _tell(self, message: Any) -> None:
        answers = self._runner.receive(message)
        if answers:
            raise RuntimeError(f"the engine refused {message}: {answers}")

    def _work(self, texts: dict[int, list[int]]) -> int:
        """Let the engine compute, and add the sampled tokens to `texts`; the number of steps that it answered."""
        events = self._runner.work(lambda: None)
        for event in events:
            if not isinstance(event, self._parts.step_done):
                raise RuntimeError(f"the engine answered {event}")
            for sequence, token in zip(event.sequence, event.token, strict=True):
                texts.setdefault(sequence, []).append(token)
        return len(events)


def main() -> None:
    """The command."""
    tree = Path(sys.argv[1]).resolve()
    sys.path.insert(0, str(tree))
    parts = engine_parts(tree)
    serve(lambda setup: EngineContestant(parts, setup))


if __name__ == "__main__":
    main()
