"""What attends to prompts on a GPU: another library's kernel where it is there, agrees with Triton's, and is faster for
the model at hand. Measured once when an engine starts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dunlin.engine.attention.base import AttentionKind, Result, ragged_rows, run_pass
from dunlin.engine.attention.prompt_kernel import PromptKernel
from dunlin.engine.attention.triton_paged import TritonAttention

AGREED_ROWS = ((1, 300), (200, 90), (7, 40), (300, 0))
TIMED_ROWS = ((512, 15_000), (2_048, 0))
"""(tokens, tokens before them)"""
TOLERANCE = 0.05
"""The greatest difference of two numbers near 1, which both are rounded to bf16."""
LEAST_GAIN = 0.03
"""Of the time: what is less may be chance."""


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What the attention of a model's layers has in common: `dtype` of queries, `kv_dtype` of keys, kinds of layers."""

    heads: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    kv_dtype: torch.dtype
    kinds: frozenset[AttentionKind]
    device: torch.device


Measure = Callable[[Callable[[], object]], float]
"""(work) -> seconds that the device takes for it."""


def choose_prompt_kernel(
    library: str, open_kernel: Callable[[], PromptKernel], shape: AttentionShape, measure: Measure
) -> tuple[PromptKernel | None, str]:
    """The kernel, or None for Triton's, and what to tell of it. `library` is its name.

    Whatever `open_kernel` or its kernel raises is told: it may compile here, for which much may be missing.
    """
    ours = TritonAttention()
    try:
        kernel = open_kernel()
        theirs = TritonAttention(prompts=kernel)
        if not all(_agree(ours, theirs, shape, kind) for kind in shape.kinds):
            return None, f"prompts by Triton ({library} gives other results here)"
        share = _time(theirs, shape, measure) / _time(ours, shape, measure)
    except Exception as error:
        first = (str(error).splitlines() or [""])[0]
        return None, f"prompts by Triton ({library} fails here: {type(error).__name__}: {first})"
    if share > 1 - LEAST_GAIN:
        return None, f"prompts by Triton ({library} takes {share:.2f} of its time)"
    return kernel, f"prompts by {library}, in {share:.2f} of Triton's time"


def _agree(ours: TritonAttention, theirs: TritonAttention, shape: AttentionShape, kind: AttentionKind) -> bool:
    slots = torch.randperm(sum(map(sum, AGREED_ROWS)), generator=torch.Generator().manual_seed(1))
    first, second = (_compute(each, shape, AGREED_ROWS, kind, slots)() for each in (ours, theirs))
    return all(torch.allclose(a.float(), b.float(), atol=TOLERANCE) for a, b in zip(first, second, strict=True))


def _time(attention: TritonAttention, shape: AttentionShape, measure: Measure) -> float:
    """Seconds of a layer of each of `TIMED_ROWS`, planned before, whose keys lie in one run of slots as most do."""
    kind = max(shape.kinds, key=lambda each: each.window == 0)
    return sum(measure(_compute(attention, shape, [row], kind, torch.arange(sum(row)))) for row in TIMED_ROWS)


def _compute(
    attention: TritonAttention,
    shape: AttentionShape,
    rows: Sequence[tuple[int, int]],
    kind: AttentionKind,
    slots: Tensor,
) -> Callable[[], Result]:
    """Attention of such rows in one layer: random, but the same for all backends."""
    random = torch.Generator().manual_seed(1)
    query = torch.randn(sum(tokens for tokens, _ in rows), shape.heads, shape.head_dim, generator=random)
    kv = torch.randn(len(slots), 2, shape.kv_heads, shape.head_dim, generator=random)
    there = query.to(shape.device, shape.dtype), kv.to(shape.device, shape.kv_dtype)
    plan = attention.plan(ragged_rows(rows, slots.tolist()), kind)
    return lambda: run_pass(plan.start(*there), lambda: None)
