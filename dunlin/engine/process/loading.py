"""A process's model: loaded, its numerics chosen, and tried before the first request."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from dunlin.engine.decoder.loading.loader import LoadedModel, load_model
from dunlin.engine.decoder.loading.weights import TORCH_DTYPES
from dunlin.engine.decoder.lora.loading import load_adapters
from dunlin.engine.device.base import EngineDevice
from dunlin.engine.process.numerics import engine_numerics, with_chosen_prompts
from dunlin.engine.process.options import EngineOptions
from dunlin.engine.process.selftest import determinism_self_test, has_finite_logits
from dunlin.engine.process.warmup import warm_up
from dunlin.engine.ranks.membership import RankMembership
from dunlin.engine.ranks.numerics import rank_numerics
from dunlin.model.errors import ModelError


def load(
    options: EngineOptions,
    device: EngineDevice,
    safepoint: Callable[[], None],
    joined: RankMembership,
    count: Callable[[], None],
) -> LoadedModel:
    """The model of these options, or this rank's part of it. Passes a `safepoint` after each layer; `count` is a sign
    of life that any thread may give.

    :raises ModelError, ValueError, MemoryError, OSError: as `load_model`; ValueError if determinism is refused.
    """
    chosen = rank_numerics(engine_numerics(options, device), joined.collective, on_device=not device.is_host)
    loaded = load_model(
        options.model, options.dtype, options.kv_bytes, chosen, options.arena_fd, safepoint, source=device.memory,
        collective=joined.collective, kv_dtype=options.kv_dtype,
    )  # fmt: skip
    decoder = with_chosen_prompts(options.name, device, loaded.decoder, count)
    wanted = {digest: Path(directory) for digest, _, directory in (each.partition("=") for each in options.adapters)}
    adapters = load_adapters(wanted, loaded.config, TORCH_DTYPES[options.dtype], device.torch_device)
    if adapters:
        size = f"{adapters.size_bytes / (1 << 20):.1f} MiB beside the weights"
        print(f"dunlin engine {options.name}: LoRA adapters: {len(wanted)}, {size}", file=sys.stderr, flush=True)
    return replace(loaded, decoder=decoder.with_adapters(adapters))


def check_model(
    loaded: LoadedModel, options: EngineOptions, safepoint: Callable[[], None], device: EngineDevice
) -> Sequence[int]:
    """Compute once, with KV of its own; the numbers of threads that may compute from now on.

    :raises ModelError: nothing that it computes is a number.
    :raises ValueError: the deterministic mode's promise cannot be kept here.
    """
    if not has_finite_logits(loaded.decoder):
        remedy = "fetch it again" if options.dtype == "float32" else "fetch it again, or compute in float32"
        what = f"the logits are not finite in {options.dtype}: the checkpoint is damaged, or too large for that format"
        raise ModelError(options.model, what, remedy)
    if options.deterministic:  # it computes one shape only, so there is nothing to warm up
        return _deterministic_counts(loaded, options.threads)
    warm_up(loaded.decoder, safepoint, device.warm_steps)
    return range(1, options.threads + 1)


def _deterministic_counts(loaded: LoadedModel, most: int) -> Sequence[int]:
    """`most`, and one thread where that gives the same bits. :raises ValueError: see `check_model`."""
    found = {}
    for count in sorted({1, most}):
        torch.set_num_threads(count)
        found[count] = determinism_self_test(loaded.decoder)
    bits, alone = found[most], found[1]
    if bits is None:
        raise ValueError("this machine's kernels do not keep the deterministic mode's promise: run without it")
    return [1, most] if alone is not None and torch.equal(alone, bits) else [most]
