"""Small checkpoints and decoders for tests; a test names only what it varies."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from dunlin.engine.attention.base import BatchRow, local_row
from dunlin.engine.attention.choice import choose_backend
from dunlin.engine.attention.spans import slot_span
from dunlin.engine.decoder import numerics
from dunlin.engine.decoder.decoder import Decoder, DecoderBatch
from dunlin.engine.decoder.iteration import forward
from dunlin.engine.decoder.loading.loader import LoadedModel, load_model
from dunlin.engine.decoder.loading.random_checkpoint import CheckpointShape, write_random_checkpoint
from dunlin.engine.decoder.native.prompt_kernels import choose_prompt_kernels
from dunlin.engine.decoder.native.row_kernels import choose_row_kernels

torch.set_num_threads(1)

FAST_BACKEND = choose_backend()[0]
ROW_KERNELS = choose_row_kernels()
PROMPT_KERNELS = choose_prompt_kernels()
"""What an engine would take here."""

SHAPES = {
    "gqa": ("llama", {"heads": 6, "kv_heads": 2}),
    "mha": ("mistral", {"heads": 4, "kv_heads": 4, "head_dim": 16}),
    "tied": ("qwen2", {"heads": 4, "kv_heads": 1, "tied": True}),
}


def make_shape(**overrides: Any) -> CheckpointShape:
    values = {"layers": 3, "hidden": 96, "heads": 6, "kv_heads": 2, "head_dim": 16, "intermediate": 160, "vocab": 512}
    return CheckpointShape(**{**values, "max_positions": 4096, **overrides})


def make_checkpoint(folder: Path, family: str = "llama", seed: int = 0, **overrides: Any) -> Path:
    directory = folder / f"{family}-{seed}"
    write_random_checkpoint(directory, family, make_shape(**overrides), seed)
    return directory


def damage(directory: Path, token: int, value: float = float("nan")) -> Path:
    """Make what a text with `token` leads to no number."""
    path = directory / "model.safetensors"
    tensors = safetensors.torch.load(path.read_bytes())
    tensors["model.embed_tokens.weight"][token] = value
    safetensors.torch.save_file(tensors, path)
    return directory


def load(
    directory: Path,
    deterministic: bool = False,
    dtype: str = "float32",
    kv_bytes: int = 8 << 20,
    attention: str = FAST_BACKEND,
    kv_dtype: str = "",
) -> LoadedModel:
    fast = numerics.fast_numerics(attention, ROW_KERNELS, PROMPT_KERNELS)
    chosen = numerics.deterministic_numerics() if deterministic else fast
    chosen = numerics.for_narrow_kv(chosen) if kv_dtype else chosen
    return load_model(directory, dtype, kv_bytes, chosen, os.memfd_create("test-arena"), kv_dtype=kv_dtype)


def nothing() -> None:
    """A safepoint at which nothing happens."""


class Sequences:
    """A driver that places sequences in slots and computes parts of them, as the runner will."""

    def __init__(self, decoder: Decoder, slots: dict[int, list[int]]) -> None:
        self.decoder = decoder
        self.slots = slots

    def compute(self, parts: Sequence[tuple[int, list[int], int]], safepoint: Callable[[], None] = nothing) -> Tensor:
        """One step over (sequence, its new tokens, how many it has); logits `[parts, vocab]` for each part's last
        token.
        """
        tokens: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        rows: list[BatchRow] = []
        for sequence, new, before in parts:
            start = len(tokens)
            tokens += new
            positions += range(before, before + len(new))
            slots += self.slots[sequence][before : before + len(new)]
            length = before + len(new)
            rows.append(local_row(start, len(tokens), slot_span(range(length), self.slots[sequence][:length])))
        sampled = torch.tensor([row.stop - 1 for row in rows])
        batch = DecoderBatch(torch.tensor(tokens), torch.tensor(positions), torch.tensor(slots), rows, sampled)
        return forward(self.decoder, batch, safepoint)


class SteppingClock:
    """Each reading is a second later than the one before."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 1.0
        return self.now_s
