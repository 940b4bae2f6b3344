"""The same prompts and decode steps by transformers with torch's SDPA, on the same device in the same run."""

from collections.abc import Callable
from typing import Any, cast

import torch

from benchmarks.gpu.limits import device_seconds
from benchmarks.gpu.plan import GpuPlan
from benchmarks.gpu.random_model import config_values
from benchmarks.gpu.results import Results

PEERS = "b: beside transformers with SDPA"


class TransformersPart:
    """Owns transformers' model of the plan's shape, with random weights of its own."""

    def __init__(self, plan: GpuPlan, device: torch.device, results: Results, ours: dict[str, float]) -> None:
        from transformers import AutoConfig, AutoModelForCausalLM

        self._plan = plan
        self._device = device
        self._results = results
        self._ours = ours
        config = cast(Any, AutoConfig).for_model(**config_values(plan.speed))
        with torch.device(device):
            self._model: Any = (
                cast(Any, AutoModelForCausalLM)
                .from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa")
                .eval()
            )

    def checks(self) -> dict[str, Callable[[], None]]:
        """By name, in order."""
        return {"transformers: prompts": self.prefill, "transformers: decode": self.decode}

    @torch.inference_mode()
    def prefill(self) -> None:
        """A prompt; the logits of its last token alone."""
        for tokens in self._plan.prefill:
            ids = self._ids(1, tokens)
            run = lambda ids=ids: self._model(ids, use_cache=True, logits_to_keep=1)  # noqa: E731
            self._put(f"prefill {tokens}", device_seconds(run, self._device, self._plan.repeats))

    @torch.inference_mode()
    def decode(self) -> None:
        """One token for each row after contexts of equal length, whose cache grows by each repeat."""
        from transformers import DynamicCache

        for rows, context in self._plan.decode:
            if f"decode {rows} x {context}" not in self._ours:
                continue
            cache: Any = DynamicCache()
            shape = self._plan.speed
            for layer in range(shape.layers):
                keys, values = (
                    torch.randn(
                        rows, shape.kv_heads, context, shape.head_dim, device=self._device, dtype=torch.bfloat16
                    )
                    for _ in range(2)
                )
                cache.update(keys, values, layer)
            ids = self._ids(rows, 1)
            run = lambda ids=ids, cache=cache: self._model(ids, past_key_values=cache, use_cache=True)  # noqa: E731
            self._put(f"decode {rows} x {context}", device_seconds(run, self._device, self._plan.repeats))
            del cache

    def _ids(self, rows: int, tokens: int) -> torch.Tensor:
        return torch.randint(0, self._plan.speed.vocab, (rows, tokens), device=self._device)

    def _put(self, name: str, took_s: float) -> None:
        ours_s = self._ours.get(name)
        figures = {"ms": 1e3 * took_s}
        if ours_s is not None:
            figures |= {"ms of the engine": 1e3 * ours_s, "times as fast": took_s / ours_s}
        self._results.put(PEERS, name, figures)
