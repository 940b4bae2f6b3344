"""flashinfer's attention of prompts over KV as it lies here: pages of one slot.

A plan goes to the device once, where a wrapper of flashinfer's keeps it. There are a few wrappers: who finds that
another took its own meanwhile plans again.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from itertools import accumulate
from math import log
from typing import Any

import torch
from torch import Tensor

from dunlin.engine.attention.base import AttentionKind

WORK_SPACE_BYTES = 128 << 20
"""For partial results of long rows: as much as its documentation asks for. All wrappers share it, one after another."""
WRAPPERS, WRAPPER_BYTES = 8, 8 << 20
"""Each has so much on the device, and as much on the host. A step has a plan for each piece and kind of attention."""
DEVICE_BYTES = WORK_SPACE_BYTES + WRAPPERS * WRAPPER_BYTES
"""What it takes of a device's memory at most."""
HEAD_DIMS = (64, 128, 256)
"""That its kernels are made for."""
DTYPES = (torch.bfloat16, torch.float16)
LN_2 = log(2.0)

Fence = Callable[[], Callable[[], None]]
"""() -> a function that waits until what was launched before is done."""


class FlashinferUnavailable(ValueError):
    """It has no kernels for this model; the text says why."""


def installed_flashinfer() -> str | None:
    """Its name and version, if it is here."""
    try:
        return f"flashinfer {version('flashinfer-python')}"
    except PackageNotFoundError:
        return None


def open_flashinfer(device: torch.device, head_dim: int, dtype: torch.dtype, fence: Fence) -> "FlashinferPrompts":
    """Its kernels on a GPU, for queries of `head_dim` numbers of `dtype`.

    :raises FlashinferUnavailable: there are none.
    :raises ImportError: it is not here, or something that it takes.
    """
    if head_dim not in HEAD_DIMS or dtype not in DTYPES:
        raise FlashinferUnavailable(f"no kernels for heads of {head_dim} in {str(dtype).removeprefix('torch.')}")
    from flashinfer import BatchPrefillWithPagedKVCacheWrapper

    space = torch.empty(WORK_SPACE_BYTES, dtype=torch.uint8, device=device)
    return FlashinferPrompts(lambda: BatchPrefillWithPagedKVCacheWrapper(space, "NHD"), fence)


class FlashinferPrompts:
    """See `PromptKernel`. Owns flashinfer's wrappers, the one that was used least lately first."""

    def __init__(self, make_wrapper: Callable[[], Any], fence: Fence) -> None:
        """`make_wrapper()` gives a new `BatchPrefillWithPagedKVCacheWrapper`."""
        self._make_wrapper = make_wrapper
        self._fence = fence
        self._kept: deque[_Kept] = deque()

    def plan(self, kind: AttentionKind, rows: Tensor, slots: Sequence[Tensor]) -> "FlashinferPlan":
        """See `PromptKernel`."""
        return FlashinferPlan(self, kind, rows, slots)

    def planned(self, plan: "FlashinferPlan", query: Tensor, layer_kv: Tensor) -> Any:
        """The wrapper that keeps `plan`."""
        kept = next((each for each in self._kept if each.plan is plan), None)
        if kept is None:
            wrapper = self._free_wrapper()
            plan.write(wrapper, query, layer_kv)
            kept = _Kept(wrapper, plan, self._fence())
        else:
            self._kept.remove(kept)
        self._kept.append(kept)
        return kept.wrapper

    def _free_wrapper(self) -> Any:
        if len(self._kept) < WRAPPERS:
            return self._make_wrapper()
        kept = self._kept.popleft()
        kept.wait_for_copy()  # from the host's memory, which the next plan is written to
        return kept.wrapper


@dataclass(frozen=True, slots=True, eq=False)
class _Kept:
    """A wrapper, the plan that it keeps, and what waits until that was copied to the device."""

    wrapper: Any
    plan: "FlashinferPlan"
    wait_for_copy: Callable[[], None]


class FlashinferPlan:
    """See `PlannedPrompts`."""

    def __init__(self, prompts: FlashinferPrompts, kind: AttentionKind, rows: Tensor, slots: Sequence[Tensor]) -> None:
        self._prompts = prompts
        self._kind = kind
        self._tokens = rows[:, 2].tolist()
        self._queries = _places(rows[:, 0].tolist(), self._tokens)
        self._results = _places(rows[:, 1].tolist(), self._tokens)
        self._slots = slots

    def write(self, wrapper: Any, query: Tensor, layer_kv: Tensor) -> None:
        """Plan in `wrapper`, for layers of these shapes and dtypes."""
        kind, (heads, head_dim) = self._kind, query.shape[1:]
        self._queries, self._results = _on(query.device, self._queries), _on(query.device, self._results)
        wrapper.plan(
            _bounds(self._tokens),
            _bounds([len(each) for each in self._slots]),
            self._slots[0] if len(self._slots) == 1 else torch.cat(list(self._slots)),
            torch.ones(len(self._slots), dtype=torch.int32),
            heads,
            layer_kv.shape[2],
            head_dim,
            1,
            causal=True,
            sm_scale=kind.scale_of(head_dim),
            window_left=kind.window - 1,
            logits_soft_cap=kind.cap or None,
            q_data_type=query.dtype,
            kv_data_type=layer_kv.dtype,
        )

    def attend(self, query: Tensor, layer_kv: Tensor, out: Tensor, lse: Tensor) -> None:
        """See `PlannedPrompts`."""
        wrapper, results = self._prompts.planned(self, query, layer_kv), self._results
        pages = layer_kv[:, 0].unsqueeze(1), layer_kv[:, 1].unsqueeze(1)
        into = out[results] if isinstance(results, slice) else None
        # Its kernels are not to begin before ours are done: ours let the next one begin early (`hopper.py`).
        found, logs = wrapper.run(query[self._queries], pages, out=into, return_lse=True, enable_pdl=False)
        if into is None:
            out[results] = found
        lse[results] = logs * LN_2  # it counts in powers of two


Places = slice | Tensor
"""What indexes packed tokens."""


def _places(starts: Sequence[int], counts: Sequence[int]) -> Places:
    """So many tokens from each start on: a slice where they are adjacent."""
    if all(start + count == after for start, count, after in zip(starts, counts, starts[1:], strict=False)):
        return slice(starts[0], starts[-1] + counts[-1])
    return torch.cat([torch.arange(start, start + count) for start, count in zip(starts, counts, strict=True)])


def _on(device: torch.device, places: Places) -> Places:
    return places if isinstance(places, slice) else places.to(device)


def _bounds(counts: Sequence[int]) -> Tensor:
    """Where each of several begins, and the last ends."""
    return torch.tensor([0, *accumulate(counts)], dtype=torch.int32)
