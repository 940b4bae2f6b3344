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
        scattered = torch.randperm(sum(map(sum, AGREED_ROWS)), generator=torch.Generator().manual_seed(1))
        agreed = _Trial(shape, AGREED_ROWS, scattered)
        if not all(agreed.is_same_by(ours, theirs, kind) for kind in shape.kinds):
            return None, f"prompts by Triton ({library} gives other results here)"
        timed = [_Trial(shape, [row], torch.arange(sum(row))) for row in TIMED_ROWS]
        took_s = [sum(measure(trial.work(each, _widest(shape))) for trial in timed) for each in (theirs, ours)]
        share = took_s[0] / took_s[1]
    except Exception as error:
        first = (str(error).splitlines() or [""])[0]
        return None, f"prompts by Triton ({library} fails here: {type(error).__name__}: {first})"
    if share > 1 - LEAST_GAIN:
        return None, f"prompts by Triton ({library} takes {share:.2f} of its time)"
    return kernel, f"prompts by {library}, in {share:.2f} of Triton's time"


def _widest(shape: AttentionShape) -> AttentionKind:
    """A kind of layers without a window, if there is one."""
    return max(shape.kinds, key=lambda each: each.window == 0)


class _Trial:
    """Rows of (tokens, tokens before them) in one layer, random, whose keys lie in these slots one after another."""

    def __init__(self, shape: AttentionShape, rows: Sequence[tuple[int, int]], slots: Tensor) -> None:
        random = torch.Generator().manual_seed(1)
        query = torch.randn(sum(tokens for tokens, _ in rows), shape.heads, shape.head_dim, generator=random)
        kv = torch.randn(len(slots), 2, shape.kv_heads, shape.head_dim, generator=random)
        self._there = query.to(shape.device, shape.dtype), kv.to(shape.device, shape.kv_dtype)
        self._rows = ragged_rows(rows, slots.tolist())

    def work(self, attention: TritonAttention, kind: AttentionKind) -> Callable[[], Result]:
        """Computes them, planned before."""
        plan = attention.plan(self._rows, kind)
        return lambda: run_pass(plan.start(*self._there), lambda: None)

    def is_same_by(self, ours: TritonAttention, theirs: TritonAttention, kind: AttentionKind) -> bool:
        """Whether both compute the same, but for what is rounded."""
        pairs = zip(self.work(ours, kind)(), self.work(theirs, kind)(), strict=True)
        return all(torch.allclose(a.float(), b.float(), atol=TOLERANCE) for a, b in pairs)
