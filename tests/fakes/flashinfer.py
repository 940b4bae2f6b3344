"""flashinfer's wrapper of paged attention of prompts, computed by torch: what its documentation says of `plan` and
`run`, for pages of any size in the layout NHD. The real one computes on GPUs alone.
"""

from collections.abc import Sequence
from math import log

import torch
from torch import Tensor


class PrefillWrapper:
    """`plans` counts what was planned, and `runs` the rows of each run. A plan holds until the next one."""

    def __init__(self, error: float = 0.0) -> None:
        """`error` is added to all results."""
        self.plans = 0
        self.runs: list[list[int]] = []
        self._error = error

    def plan(
        self, qo_indptr: Tensor, paged_kv_indptr: Tensor, paged_kv_indices: Tensor, paged_kv_last_page_len: Tensor,
        num_qo_heads: int, num_kv_heads: int, head_dim_qk: int, page_size: int, *, causal: bool, sm_scale: float,
        window_left: int, logits_soft_cap: float | None, q_data_type: torch.dtype, kv_data_type: torch.dtype,
    ) -> None:  # fmt: skip
        given = (qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len)
        assert all(each.dtype is torch.int32 and each.is_contiguous() for each in given)
        assert len(qo_indptr) == len(paged_kv_indptr) == len(paged_kv_last_page_len) + 1
        assert causal
        assert paged_kv_indptr[-1] == len(paged_kv_indices)
        self.plans += 1
        self._bounds, self._pages = [each.tolist() for each in (qo_indptr, paged_kv_indptr)], paged_kv_indices.long()
        self._last, self._page_size = paged_kv_last_page_len.tolist(), page_size
        self._shape = num_qo_heads, num_kv_heads, head_dim_qk
        self._scale, self._window, self._cap = sm_scale, window_left, logits_soft_cap or 0.0
        self._dtypes = q_data_type, kv_data_type

    def run(
        self, q: Tensor, paged_kv_cache: tuple[Tensor, Tensor], *, out: Tensor | None, return_lse: bool,
        enable_pdl: bool,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        assert return_lse
        assert not enable_pdl
        keys, values = paged_kv_cache
        heads, kv_heads, head_dim = self._shape
        assert keys.shape[1:] == values.shape[1:] == (self._page_size, kv_heads, head_dim)
        assert q.shape == (self._bounds[0][-1], heads, head_dim)
        assert (q.dtype, keys.dtype) == self._dtypes
        assert out is None or (out.shape, out.dtype) == (q.shape, q.dtype)
        found = [self._row(row, q, keys, values) for row in range(len(self._last))]
        self.runs.append([len(each) for each, _ in found])
        result = torch.cat([each for each, _ in found]).to(q.dtype) + self._error
        if out is not None:
            out.copy_(result)
        return (result if out is None else out), torch.cat([lse for _, lse in found])

    def _row(self, row: int, q: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """The last query sees the last key. The window's size leaves out the query itself; lse is in powers of two."""
        queries = q[slice(*_span(self._bounds[0], row))].float()
        pages = self._pages[slice(*_span(self._bounds[1], row))]
        count = (len(pages) - 1) * self._page_size + self._last[row]
        group = self._shape[0] // self._shape[1]
        k, v = (each[pages].flatten(0, 1)[:count].float().repeat_interleave(group, 1) for each in (keys, values))
        scores = torch.einsum("qhd,khd->hqk", queries, k) * self._scale
        if self._cap:
            scores = self._cap * torch.tanh(scores / self._cap)
        distance = torch.arange(count - len(queries), count)[:, None] - torch.arange(count)
        unseen = (distance < 0) | ((distance > self._window) if self._window >= 0 else False)
        scores = scores.masked_fill(unseen, float("-inf"))
        return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v), scores.logsumexp(-1).t() / log(2)


def _span(bounds: Sequence[int], row: int) -> tuple[int, int]:
    return bounds[row], bounds[row + 1]
