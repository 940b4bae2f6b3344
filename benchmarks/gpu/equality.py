"""Part (a): the engine on the device gives what the engine on the CPU gives, and what transformers gives.

Over one small checkpoint in float32: greedy and sampled texts in one ragged batch, interrupts, layers dropped and
restored, regions copied out and back, decode steps recorded and launched one by one.
"""

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.gpu.driver import GREEDY, EngineDriver
from benchmarks.gpu.plan import GpuPlan
from benchmarks.gpu.random_model import random_tokens
from benchmarks.gpu.ranks import can_compare, compare_ranks
from benchmarks.gpu.results import Results
from dunlin.engine.attention.base import local_row, run_pass
from dunlin.engine.attention.fused import FusedAttention
from dunlin.engine.attention.spans import slot_span
from dunlin.engine.decoder.decoder import DecoderBatch
from dunlin.engine.decoder.gpu.triton_products import gated_linear
from dunlin.engine.decoder.iteration import forward
from dunlin.engine.decoder.loading.loader import LoadedModel, load_model
from dunlin.engine.decoder.loading.random_checkpoint import write_random_checkpoint
from dunlin.engine.decoder.loading.weight_sources import CheckpointSource
from dunlin.engine.decoder.numerics import for_narrow_kv
from dunlin.engine.device.base import EngineDevice, cpu_device
from dunlin.engine.execution.remap import LayerRemapper
from dunlin.engine.transfer.arena_slots import slab_of
from dunlin.engine.transfer.host_tier import Bytes
from dunlin.engine.transfer.slab import KvSlab
from dunlin.messages.engine import Interrupt, Remap, Resume, StepDone
from dunlin.messages.types import Region, RemapPhase, SamplingParams, Verdict, i32, i64
from dunlin.model.kv_dtypes import FP8

PART = "a: equality"
TOLERANCE = 1e-4
SAMPLED = SamplingParams(temperature=0.8, top_k=50, top_p=0.9, seed=7)


@contextmanager
def checkpoint(plan: GpuPlan) -> Iterator[Path]:
    """A checkpoint of the plan's shape."""
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "model"
        write_random_checkpoint(directory, "llama", plan.equal, seed=3)
        yield directory


class EqualityPart:
    """Owns the checkpoint's model on the device and on the CPU."""

    def __init__(self, plan: GpuPlan, device: EngineDevice, results: Results, directory: Path) -> None:
        self.plan = plan
        self.device = device
        self.results = results
        self.directory = directory
        self._kv_bytes = (sum(plan.texts) + 4 * plan.generated * len(plan.texts) + 4096) * self._token_bytes()
        self.there = self._load(device)
        self.here = self._load(cpu_device())
        random = torch.Generator().manual_seed(5)
        vocabulary = plan.equal.vocab
        self.prompts = [random_tokens(count, vocabulary, random) for count in plan.texts]

    def checks(self) -> dict[str, Callable[[], None]]:
        """By name, in order."""
        return {
            "attention": self.attention,
            "logits as the CPU's": self.logits,
            "logits as transformers'": self.transformers,
            "texts as the CPU's": self.texts,
            "recorded decode steps": self.segments,
            "gates of few rows": self.gates,
            "steps in bf16": self.half_precision,
            "KV in fp8": self.narrow_kv,
            "interrupts": self.interrupts,
            "layers dropped and restored": self.remap,
            "regions out and back": self.copies,
            "two ranks": self.ranks,
        }

    def ranks(self) -> None:
        """Processes of their own: where there are two devices."""
        if not can_compare(self.device):
            self.results.skipped.append(f"two ranks: {self.device.name} and the next one are wanted")
            return
        compare_ranks(self.plan, self.device, self.results, self.directory, self._kv_bytes, self.prompts)

    def attention(self) -> None:
        """The kernel beside torch's on the CPU, over scattered slots, in both dtypes."""
        random = torch.Generator().manual_seed(1)
        shapes = [(1, 300), (7, 90), (40, 0), (1, 5)] if self.plan.is_interpreted else [(1, 9000), (300, 700), (1, 64)]
        tokens, keys = sum(count for count, _ in shapes), sum(map(sum, shapes))
        query, kv = torch.randn(tokens, 8, 64, generator=random), torch.randn(keys, 2, 2, 64, generator=random)
        slots, rows, at, first = torch.randperm(keys, generator=random).tolist(), [], 0, 0
        for count, before in shapes:
            length = count + before
            rows.append(local_row(at, at + count, slot_span(range(length), slots[first : first + length])))
            at, first = at + count, first + length
        wanted = run_pass(FusedAttention().plan(rows).start(query, kv), lambda: None)
        for dtype, most in ((torch.float32, 1e-5), (torch.bfloat16, 8e-3)):
            queries, keys_there = (each.to(dtype).to(self.device.torch_device) for each in (query, kv))
            plan = self.there.decoder.numerics.attention.plan(rows)
            found = run_pass(plan.start(queries, keys_there), lambda: None)
            error = relative(found[0].cpu(), wanted[0])
            self._near(f"attention in {dtype}", error, most)

    def logits(self) -> None:
        """Of every prompt, all in one batch; then each alone."""
        wanted = self._prompt_logits(self.here)
        self._near("logits of a ragged batch", relative(self._prompt_logits(self.there), wanted), TOLERANCE)

    def transformers(self) -> None:
        """The last logits of each prompt, computed alone on the CPU in float32."""
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(self.directory, dtype=torch.float32)
        with torch.inference_mode():
            wanted = torch.cat([model(torch.tensor([prompt])).logits[:, -1] for prompt in self.prompts])
        self._near("logits beside transformers", relative(self._prompt_logits(self.there), wanted), TOLERANCE)

    def texts(self) -> None:
        """Greedy and sampled."""
        for name, sampling in (("greedy", GREEDY), ("sampled", SAMPLED)):
            ours, theirs = (
                self._generate(each, sampling) for each in ((self.there, self.device), (self.here, cpu_device()))
            )
            self._same(f"{name} texts", ours, theirs)

    def segments(self) -> None:
        """With and without recorded segments of layers."""
        ours = self._generate((self.there, self.device), GREEDY)
        self._same("recorded steps", ours, self._generate((self.there, self.device), GREEDY, with_segments=False))

    def gates(self) -> None:
        """The gates of few rows in bf16, beside those of the same numbers in float64."""
        random, worst = torch.Generator().manual_seed(2), 0.0
        sizes = ((1, 3072, 4096), (5, 48, 200), (16, 14336, 4096), (33, 500, 1024), (64, 1024, 4096))
        for count, width, inner in sizes[1:2] if self.plan.is_interpreted else sizes:
            rows, weight = (
                (scale * torch.randn(shape, generator=random)).to(self.device.torch_device, torch.bfloat16)
                for shape, scale in (((count, inner), 1.0), ((2 * width, inner), inner**-0.5))
            )
            gate, up = (rows.double() @ weight.double().t()).chunk(2, dim=1)
            worst = max(worst, relative(gated_linear(rows, weight), gate.sigmoid() * gate * up))
        # The interpreter cuts off where a GPU rounds.
        self._near("gates of few rows", worst, 2e-2 if self.plan.is_interpreted else 1e-2)

    def half_precision(self) -> None:
        """In bf16: short prompts beside float32, and decode steps recorded, launched one by one, and recorded again."""
        half = self._load(self.device, "bfloat16")
        short = [prompt for prompt in self.prompts if len(prompt) <= 32]
        wanted = self._prompt_logits(self.here, short)
        self._near("logits in bf16 of short prompts", relative(self._prompt_logits(half, short), wanted), 4e-2)
        ours, again = (self._generate((half, self.device), GREEDY) for _ in range(2))
        self._same("recorded steps in bf16, twice", ours, again)
        self._same("recorded steps in bf16", ours, self._generate((half, self.device), GREEDY, with_segments=False))
        half.arena.close()

    def narrow_kv(self) -> None:
        """KV in fp8, in float32 and bf16: beside the CPU's, and decode steps recorded and launched one by one."""
        if not self.device.reads_fp8:
            self.results.put(PART, "KV in fp8", "this device reads none")
            return
        here = self._load(cpu_device(), kv_dtype=FP8)
        short = [prompt for prompt in self.prompts if len(prompt) <= 32]
        wanted = self._prompt_logits(here, short)
        for dtype, most in (("float32", 2e-2), ("bfloat16", 6e-2)):  # neighbours are a sixteenth apart
            there = self._load(self.device, dtype, FP8)
            self._near(f"logits in {dtype} over KV in fp8", relative(self._prompt_logits(there, short), wanted), most)
            ours, again = (self._generate((there, self.device), GREEDY, recorded) for recorded in (True, False))
            self._same(f"recorded steps in {dtype} over KV in fp8", ours, again)
            there.arena.close()

    def interrupts(self) -> None:
        """A prompt that is suspended at every third safepoint and resumed ends with the same token."""
        prompt = self.prompts[-1]
        wanted = self._last_token(prompt, 0)
        for spacing in (1, 3):
            self._same(
                f"token of a prompt suspended at each {spacing}. safepoint", self._last_token(prompt, spacing), wanted
            )

    def remap(self) -> None:
        """Some layers are dropped and come back: the same logits, and the KV of the others where it was."""
        layers = tuple(range(self.plan.equal.layers))
        before = self._prompt_logits(self.there)
        kv = self.there.decoder.kv[0]
        slots = self.there.arena.slots
        marked = kv[:slots].clone()
        weights, source = self.there.weights, CheckpointSource(self.directory)
        remapper = LayerRemapper(self.there.arena, weights, source)
        fewer = layers[:-1]
        for phase in (RemapPhase.PREPARE, RemapPhase.DROP_WEIGHTS, RemapPhase.RELEASE_KV):
            finish(remapper, Remap(1, phase, i32(fewer)))
        self.results.put(PART, "slots with all layers, and without one", [slots, self.there.arena.slots])
        self.results.expect(self.there.arena.slots > slots, "dropping a layer gave no slot")
        self.results.expect(torch.equal(kv[:slots], marked), "KV changed while a layer was dropped")
        for phase in (RemapPhase.PREPARE, RemapPhase.LOAD, RemapPhase.COMMIT):
            finish(remapper, Remap(2, phase, i32(layers)))
        self.there.arena.check_integrity()
        self._near("logits after a layer came back", relative(self._prompt_logits(self.there), before), 1e-6)

    def copies(self) -> None:
        """A region to host memory and back into other slots, with one checksum."""
        slab = slab_of(self.there.arena, self.there.decoder.kv, self.device.kv)
        count = min(self.plan.copied_tokens, self.there.arena.slots // 2)
        region = Region(0, self.plan.equal.layers, 0, count)
        host = np.zeros(slab.size_bytes(region), dtype=np.uint8)
        sums = [move(slab, region, start, host, to_own) for start, to_own in ((0, False), (count, True))]
        self.results.expect(sums[0] == sums[1], "a region that came back has another checksum")
        for layer in self.there.decoder.kv:
            same = torch.equal(layer[:count].view(torch.uint8), layer[count : 2 * count].view(torch.uint8))
            self.results.expect(same, "a region that came back holds other bytes")
        self.results.put(PART, "bytes of a region out and back", len(host))

    # --- parts of checks ---

    def _token_bytes(self) -> int:
        shape = self.plan.equal
        return shape.layers * 2 * shape.kv_heads * shape.head_dim * 4

    def _load(self, device: EngineDevice, dtype: str = "float32", kv_dtype: str = "") -> LoadedModel:
        granules = 4 * self.plan.equal.layers * device.memory.granule_bytes
        chosen, fd = device.choose_numerics()[0], os.memfd_create("gpu-equality")
        chosen = for_narrow_kv(chosen) if kv_dtype else chosen
        kv_bytes = self._kv_bytes + granules
        return load_model(self.directory, dtype, kv_bytes, chosen, fd, source=device.memory, kv_dtype=kv_dtype)

    def _prompt_logits(self, loaded: LoadedModel, prompts: Sequence[Sequence[int]] = ()) -> Tensor:
        """`prompts`: all, if none is named."""
        rows, end, prompts = [], 0, prompts or self.prompts
        for prompt in prompts:
            rows.append(local_row(end, end + len(prompt), end, len(prompt)))
            end += len(prompt)
        tokens = torch.tensor([token for prompt in prompts for token in prompt])
        positions = torch.cat([torch.arange(len(prompt)) for prompt in prompts])
        sampled = torch.tensor([row.stop - 1 for row in rows])
        return forward(loaded.decoder, DecoderBatch(tokens, positions, torch.arange(end), rows, sampled)).cpu()

    def _generate(
        self, model: tuple[LoadedModel, EngineDevice], sampling: SamplingParams, with_segments: bool = True
    ) -> list[list[int]]:
        driver = EngineDriver(*model, with_segments=with_segments)
        texts = [driver.open(prompt, self.plan.generated, sampling=sampling) for prompt in self.prompts]
        # The shorter half first: the others' prompts are computed beside their decode rows.
        half = len(texts) // 2
        driver.run(driver.step(*((text, 0, len(driver.texts[text][0])) for text in texts[:half])))
        rows = [(text, len(driver.texts[text][0]) - 1, len(driver.texts[text][0])) for text in texts[:half]]
        rows += [(text, 0, len(driver.texts[text][0])) for text in texts[half:]]
        driver.run(driver.step(*rows))
        for _ in range(self.plan.generated - 2):
            driver.decode(texts)
        return [driver.texts[text][0][len(prompt) :] for text, prompt in zip(texts, self.prompts, strict=True)]

    def _last_token(self, prompt: Sequence[int], spacing: int) -> int:
        """The token after a prompt, whose row is suspended at each `spacing`-th safepoint (0: at none)."""
        driver, passed = EngineDriver(self.there, self.device), 0
        text = driver.open(prompt, 2)
        driver.tell(driver.step((text, 0, len(prompt))))

        def safepoint() -> bool:
            nonlocal passed
            passed += 1
            return spacing > 0 and passed % spacing == 0

        events = driver.runner.work(safepoint)
        while not (events and isinstance(events[-1], StepDone) and events[-1].token):
            if spacing and driver.runner.steps.is_running:
                driver.tell(Interrupt(Verdict.SUSPEND, ticket=driver.number()))
                driver.runner.work(lambda: False)
                driver.tell(Resume(driver.number(), i64([text])))
            events = driver.runner.work(safepoint)
        return int(events[-1].token[0])

    def _near(self, name: str, error: float, most: float) -> None:
        self.results.put(PART, f"{name}: relative error", error)
        self.results.expect(error <= most, f"{name}: relative error {error:.2g}, more than {most:.0e}")

    def _same(self, name: str, ours: object, theirs: object) -> None:
        self.results.put(PART, f"{name}: equal", ours == theirs)
        self.results.expect(ours == theirs, f"{name} differ: {ours} and {theirs}")


def relative(ours: Tensor, exact: Tensor) -> float:
    """The norm of the difference over that of the exact one; what is no number is no match."""
    error = float((ours.double() - exact.double()).norm() / exact.double().norm())
    return error if error == error else float("inf")


def finish_all(remapper: LayerRemapper, orders: Sequence[Remap]) -> None:
    """Carry out the orders, one after the other; see `finish`."""
    for order in orders:
        finish(remapper, order)


def finish(remapper: LayerRemapper, order: Remap) -> None:
    """One phase to its end."""
    remapper.begin(order)
    while remapper.busy:
        remapper.advance()


def move(slab: KvSlab, region: Region, start: int, host: Bytes, to_own: bool) -> int:
    """Copy a region between its slots from `start` on and host memory; its checksum."""
    count = region.stop - region.start
    pieces = slab.pieces(region, [start], [count])
    copy = slab.access.copy(b"", slab.size_bytes(region), pieces, iter((host,)), to_own, nullcontext)
    while copy.copy_chunk(8 << 20):
        pass
    return copy.checksum
