"""Part (b): how fast, beside the limits of the device that are measured in the same run.

Prompts, decode steps and mixed steps of one engine over a Llama's shape with random weights; responses to interrupts;
layers dropped and restored; regions to host memory and back. A step's time is from its command to its answer.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median

import numpy as np
import torch

from benchmarks.gpu.driver import EngineDriver
from benchmarks.gpu.equality import finish_all, move
from benchmarks.gpu.limits import DeviceLimits, wait
from benchmarks.gpu.plan import GpuPlan
from benchmarks.gpu.random_model import random_tokens
from benchmarks.gpu.results import Results
from dunlin.engine.decoder.loading.loader import LoadedModel
from dunlin.engine.decoder.loading.weight_sources import HostSource
from dunlin.engine.device.base import EngineDevice
from dunlin.engine.execution.remap import LayerRemapper
from dunlin.engine.transfer.arena_slots import slab_of
from dunlin.messages.engine import Interrupt, Interrupted, Remap, Resume
from dunlin.messages.types import Region, RemapPhase, Verdict, i32, i64

PREFILL, DECODE, MIXED = "b: prompts", "b: decode", "b: mixed steps"
INTERRUPTS, LAYERS, COPIES = "b: interrupts", "b: layers dropped and restored", "b: copies"


class SpeedPart:
    """Owns a model with random weights on the device; `limits`: what the device can do at most."""

    def __init__(
        self, plan: GpuPlan, device: EngineDevice, results: Results, loaded: LoadedModel, limits: DeviceLimits
    ) -> None:
        self.plan = plan
        self.device = device
        self.results = results
        self.loaded = loaded
        self.limits = limits
        self.seconds: dict[str, float] = {}
        """Of a step by its name, for the comparison with peers."""
        self._driver = EngineDriver(loaded, device)
        self._random = torch.Generator().manual_seed(11)

    def checks(self) -> dict[str, Callable[[], None]]:
        """By name, in order of what matters most."""
        return {
            "decode": self.decode,
            "prompts": self.prefill,
            "prompts by flashinfer": self.prefill_by_flashinfer,
            "mixed steps": self.mixed,
            "responses to interrupts": self.interrupts,
            "copies": self.copies,
            "layers": self.layers,
        }

    def prefill(self) -> None:
        """A prompt in one step, and its share of the device's products."""
        for tokens in self.plan.prefill:
            self.seconds[f"prefill {tokens}"] = self._prefill(tokens, f"{tokens} tokens")

    def prefill_by_flashinfer(self) -> None:
        """The same prompts with flashinfer's attention, where an engine would choose that."""
        decoder, plain = self.loaded.decoder, self._driver
        if self.device.choose_prompts is None:
            self.results.skipped.append("prompts by flashinfer: flashinfer-python is not installed")
            return
        numerics, told = self.device.choose_prompts(decoder)
        self.results.put(PREFILL, "an engine that starts says", told)
        if numerics.attention is decoder.numerics.attention:
            return
        self._driver = EngineDriver(replace(self.loaded, decoder=decoder.with_numerics(numerics)), self.device)
        for tokens in self.plan.prefill:
            self._prefill(tokens, f"{tokens} tokens, attention by flashinfer")
        self._driver = plain

    def _prefill(self, tokens: int, name: str) -> float:
        """Seconds of a prompt in one step; told as `name`, beside its share of the device's products."""
        took_s = self._median(lambda: self._prefill_s(tokens))
        share = self._flops(tokens) / took_s / self.limits.flops
        figures = {"ms": 1e3 * took_s, "tokens/s": tokens / took_s, "share of the measured bf16 peak": share}
        self.results.put(PREFILL, name, figures)
        return took_s

    def decode(self) -> None:
        """Steps of decode rows, and their share of the device's memory bandwidth."""
        for rows, context in self.plan.decode:
            if rows * (context + self.plan.steps + 4) > self.loaded.slots:
                self.results.skipped.append(f"decode {rows} x {context}: KV for {self.loaded.slots} tokens")
                continue
            texts = self._written(rows, context)
            for _ in range(3):
                self._driver.decode(texts)
            took_s = self._steps_s(texts)
            self._driver.close()
            self.seconds[f"decode {rows} x {context}"] = took_s
            share = self._read_bytes(rows, context) / took_s / self.limits.bytes_per_s
            figures = {"ms": 1e3 * took_s, "tokens/s": rows / took_s, "share of the measured bandwidth": share}
            self.results.put(DECODE, f"{rows} rows x {context}", figures)

    def mixed(self) -> None:
        """Decode rows beside a piece of a prompt, and what the piece adds to the step."""
        rows, context, tokens = self.plan.mixed
        texts = self._written(rows, context)
        alone_s = self._steps_s(texts)

        def step_s() -> float:
            prompt = self._driver.open(self._tokens(tokens), 1)
            lengths = [len(self._driver.texts[text][0]) for text in texts]
            parts = [(text, count - 1, count) for text, count in zip(texts, lengths, strict=True)]
            began_s = time.perf_counter()
            self._driver.run(self._driver.step(*parts, (prompt, 0, tokens)))
            return time.perf_counter() - began_s

        took_s = self._median(step_s)
        self._driver.close()
        figures = {"ms": 1e3 * took_s, "ms of the decode rows alone": 1e3 * alone_s}
        self.results.put(MIXED, f"{rows} rows x {context} and {tokens} tokens of a prompt", figures)

    def interrupts(self) -> None:
        """From the moment that an interrupt is due until its answer, at random moments of a long prompt."""
        # So long a prompt goes piece by piece; a tiny plan's would be one segment, which nothing interrupts.
        tokens, driver = self.plan.interrupted_tokens, EngineDriver(self.loaded, self.device, with_segments=False)
        spacing_s = max(self._prefill_s(tokens) / 20, 1e-4)
        responses: list[float] = []
        free: list[float] = []
        moments = np.random.default_rng(3)
        while len(responses) < self.plan.interrupts:
            text = driver.open(self._tokens(tokens), 1)
            driver.tell(driver.step((text, 0, tokens)))
            due_s = time.perf_counter() + moments.exponential(spacing_s)
            while not (events := driver.runner.work(lambda: time.perf_counter() >= due_s)):  # noqa: B023
                driver.tell(Interrupt(Verdict.SUSPEND, ticket=driver.number()))
                left = driver.runner.work(lambda: False)
                assert isinstance(left[0], Interrupted), left
                responses.append(1e3 * (time.perf_counter() - due_s))
                wait(self.device.torch_device)
                free.append(1e3 * (time.perf_counter() - due_s))
                driver.tell(Resume(driver.number(), i64([text])))
                due_s = time.perf_counter() + moments.exponential(spacing_s)
            assert events
            driver.close()
        found = _spread(responses)
        self.results.put(INTERRUPTS, f"answer within {tokens} tokens, ms ({len(responses)} interrupts)", found)
        self.results.put(INTERRUPTS, "and until the device has done what was launched", _spread(free))
        if not self.plan.is_interpreted:
            self.results.expect(found["p99"] <= 5.0, f"p99 of responses is {found['p99']:.1f} ms, the goal 5")

    def copies(self) -> None:
        """Regions between KV and host memory that is not pinned, hashed on the way, as checkpoints go."""
        slab = slab_of(self.loaded.arena, self.loaded.decoder.kv, self.device.kv)
        count = min(self.plan.copied_tokens, self.loaded.slots)
        region = Region(0, self.loaded.config.layers, 0, count)
        host = np.ones(slab.size_bytes(region), dtype=np.uint8)
        for name, to_own in (("to the host tier", False), ("back", True)):
            took_s = self._median(lambda to_own=to_own: timed(lambda: move(slab, region, 0, host, to_own)))  # type: ignore[misc]
            figures = {"GB/s": len(host) / took_s / 1e9, "MiB": len(host) >> 20}
            self.results.put(COPIES, f"{name}, hashed", figures)

    def layers(self) -> None:
        """Layers given over to KV, and brought back from host memory."""
        arena, count = self.loaded.arena, self.loaded.config.layers
        layers = tuple(range(count))
        fewer = layers[: count - self.plan.dropped_layers]
        kept = {layer: arena.layer_room(layer).content.cpu() for layer in layers[len(fewer) :]}
        size = sum(len(content) for content in kept.values())
        remapper, before = LayerRemapper(arena, self.loaded.weights, HostSource(kept)), arena.slots
        drop = (RemapPhase.PREPARE, RemapPhase.DROP_WEIGHTS, RemapPhase.RELEASE_KV)
        dropped_s = timed(lambda: finish_all(remapper, [Remap(1, phase, i32(fewer)) for phase in drop]))
        slots = arena.slots
        load = (RemapPhase.PREPARE, RemapPhase.LOAD, RemapPhase.COMMIT)
        restored_s = timed(lambda: finish_all(remapper, [Remap(2, phase, i32(layers)) for phase in load]))
        arena.check_integrity()
        figures = {
            "ms to drop": 1e3 * dropped_s, "slots gained": slots - before, "MiB": size >> 20,
            "ms to restore, verified": 1e3 * restored_s, "GB/s": size / restored_s / 1e9,
        }  # fmt: skip
        self.results.put(LAYERS, f"{len(kept)} of {count} layers", figures)

    # --- parts of measurements ---

    def _tokens(self, count: int) -> list[int]:
        return random_tokens(count, self.loaded.config.vocab, self._random)

    def _written(self, rows: int, context: int) -> list[int]:
        room = 2 * self.plan.steps + 8
        return [self._driver.open(self._tokens(context), room, is_written=True) for _ in range(rows)]

    def _prefill_s(self, tokens: int) -> float:
        text = self._driver.open(self._tokens(tokens), 1)
        took_s = timed(lambda: self._driver.run(self._driver.step((text, 0, tokens))))
        self._driver.close()
        return took_s

    def _steps_s(self, texts: Sequence[int]) -> float:
        return timed(lambda: self._driver.decode_steps(texts, self.plan.steps)) / self.plan.steps

    def _median(self, measure: Callable[[], float]) -> float:
        """Of the plan's repeats, after one that does not count: kernels are compiled in it."""
        measure()
        return median(measure() for _ in range(self.plan.repeats))

    def _flops(self, tokens: int) -> float:
        """Of a prompt's products and its causal attention; the logits are one token's."""
        shape = self.plan.speed
        linear = 2.0 * tokens * shape.layers * shape.layer_parameters
        attention = 2.0 * tokens * tokens * shape.heads * shape.head_dim * shape.layers
        return linear + attention

    def _read_bytes(self, rows: int, context: int) -> float:
        """The weights once, and the KV of all rows."""
        shape = self.plan.speed
        weights = 2.0 * (shape.layers * shape.layer_parameters + shape.vocab * shape.hidden)
        return weights + float(rows) * context * shape.kv_bytes


def _spread(found: Sequence[float]) -> dict[str, float]:
    return {"p50": median(found), "p99": float(np.quantile(found, 0.99)), "max": max(found)}


def timed(work: Callable[[], object]) -> float:
    """Seconds of a call that waits for the device itself."""
    began_s = time.perf_counter()
    work()
    return time.perf_counter() - began_s
