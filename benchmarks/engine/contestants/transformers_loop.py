"""`transformers` as a contestant: its model and cache in a greedy loop, `generate` without the costs of its options.

    python -m benchmarks.engine.contestants.transformers_loop

All requests of a workload are one batch, padded on the left where their lengths differ.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache

from benchmarks.engine.contestants.serve import serve
from benchmarks.engine.workloads import Plan, Setup


@dataclass(slots=True)
class PaddedBatch:
    """`ids` and `mask` of shape `[requests, longest prompt]`; `mask` is None where nothing is padded."""

    ids: Tensor
    mask: Tensor | None
    pads: Tensor

    @staticmethod
    def of(prompts: list[list[int]]) -> "PaddedBatch":
        """The prompts, each at the right end of its row."""
        longest = max(map(len, prompts))
        pads = torch.tensor([longest - len(prompt) for prompt in prompts])
        ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
        mask = (torch.arange(longest) >= pads[:, None]).long() if pads.any() else None
        return PaddedBatch(ids, mask, pads)


class TransformersContestant:
    """Owns the model, and the cache of each workload whose prompts are computed before the clock starts."""

    @torch.inference_mode()
    def __init__(self, setup: Setup) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(setup.checkpoint, dtype=torch.bfloat16)
        self._plans = {plan.workload.name: plan for plan in setup.plans}
        self._batches = {name: PaddedBatch.of(plan.prompts) for name, plan in self._plans.items()}
        # By prompts: workloads that differ only in an engine's extents share a cache.
        self._caches: dict[tuple[int, ...], DynamicCache] = {}
        for plan in setup.plans:
            if plan.workload.is_decode and plan.workload.prompts not in self._caches:
                self._caches[plan.workload.prompts] = self._fill(plan)

    @torch.inference_mode()
    def run(self, name: str) -> list[int]:
        """See `Contestant`."""
        batch, workload = self._batches[name], self._plans[name].workload
        outputs = workload.outputs
        cache = self._caches[workload.prompts] if workload.is_decode else None
        known = cache.get_seq_length() if cache is not None else 0
        tokens = self._generate(batch, DynamicCache() if cache is None else cache, known, outputs)
        if cache is not None:
            cache.crop(-outputs)
        first: list[int] = tokens.tolist()
        return first

    def _fill(self, plan: Plan) -> DynamicCache:
        batch, cache = self._batches[plan.workload.name], DynamicCache()
        self._forward(batch, cache, batch.ids[:, :-1], 0)
        return cache

    def _generate(self, batch: PaddedBatch, cache: DynamicCache, known: int, outputs: int) -> Tensor:
        """Greedy tokens from the prompts' columns `[known, …)` on; the first of each request."""
        first = tokens = self._forward(batch, cache, batch.ids[:, known:], known)
        for step in range(1, outputs):
            tokens = self._forward(batch, cache, tokens[:, None], batch.ids.shape[1] + step - 1)
        return first

    def _forward(self, batch: PaddedBatch, cache: DynamicCache, ids: Tensor, known: int) -> Tensor:
        """Compute the columns `[known, known + ids.shape[1])`; the best token after the last one of each row."""
        stop = known + ids.shape[1]
        positions = (torch.arange(known, stop) - batch.pads[:, None]).clamp(min=0)
        mask = None
        if batch.mask is not None:
            more = max(stop - batch.mask.shape[1], 0)
            mask = torch.nn.functional.pad(batch.mask[:, :stop], (0, more), value=1)
        found = self._model(
            ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True, logits_to_keep=1
        )
        best: Tensor = found.logits[:, -1].argmax(dim=-1)
        return best


if __name__ == "__main__":
    serve(TransformersContestant)
