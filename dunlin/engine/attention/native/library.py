"""The built kernel library, if there is one that fits its source.

A call releases the interpreter's lock and uses as many of torch's threads as torch would.
"""

import ctypes
import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dunlin.engine.attention.base import PLAIN, AttentionKind

SOURCE = Path(__file__).with_name("paged_attention.cpp")
LIBRARY = SOURCE.with_suffix(".so")
LEVELS = ("portable", "AVX2", "AVX-512", "AVX-512 BF16", "AMX")
AVX512, AMX, AMX_PACE = 2, 4, 4
"""Levels: AVX-512 is the most that arithmetic in fp32 uses. The pace of AMX."""
COLUMNS = 11
"""Of a row of the table that `PagedKernel.attend` takes: `Row` in the source."""
_DTYPES = {torch.float32: 0, torch.bfloat16: 1}


class KernelUnavailable(Exception):
    """There is no kernel library to use; the text says why."""


@dataclass(frozen=True, slots=True)
class PagedKernel:
    """The attention kernel for layers of one kind. `level` indexes `LEVELS`: the most that it uses of the processor.
    `pace`: how many times a piece's work is one piece. `is_fixed`: in fp32, a query's bits depend on what it sees of
    the row's keys alone, from the row's `key_from` on, in blocks of 64.
    """

    function: Any
    level: int
    kind: AttentionKind = PLAIN
    pace: int = 1
    is_fixed: bool = False

    def for_bf16(self) -> "PagedKernel":
        """The same for layers in bf16: with AMX their pieces have more work, and are no longer than those of others."""
        return replace(self, pace=AMX_PACE) if self.level == AMX else self

    def of(self, kind: AttentionKind) -> "PagedKernel":
        """The kernel for layers of `kind`."""
        return self if kind == self.kind else replace(self, kind=kind)

    def attend(
        self,
        query: Tensor,
        layer_kv: Tensor,
        table: Tensor,
        run_at: Tensor,
        run_slot: Tensor,
        out: Tensor,
        lse: Tensor,
    ) -> None:
        """Attention of every row of `table` `[rows, COLUMNS]`, into its place in `out` and `lse`.

        Args:
            query: `[tokens, heads, head_dim]`; heads one after another.
            layer_kv: `[slot, 2, kv_heads, head_dim]` of the same dtype; slots contiguous.
            table: int64; columns as in the source.
            run_at, run_slot: the runs of slots that the rows name, int64.
            out: `[tokens, heads, head_dim]`, fp32 or bf16.
            lse: `[tokens, heads]`, fp32.

        Raises:
            ValueError: dtypes or strides that the kernel does not take.
        """
        heads, head_dim = query.shape[1:]
        kv_heads = layer_kv.shape[2]
        if query.dtype is not layer_kv.dtype or query.dtype not in _DTYPES or out.dtype not in _DTYPES:
            raise ValueError(f"queries in {query.dtype}, KV in {layer_kv.dtype}, out in {out.dtype}")
        inner = (kv_heads * head_dim, head_dim, 1)
        if layer_kv.stride()[1:] != inner or query.stride()[1:] != inner[1:] or not out.is_contiguous():
            raise ValueError(f"strides: queries {query.stride()}, KV {layer_kv.stride()}, out {out.stride()}")
        refused = self.function(
            query.data_ptr(),
            layer_kv.data_ptr(),
            out.data_ptr(),
            lse.data_ptr(),
            table.data_ptr(),
            run_at.data_ptr(),
            run_slot.data_ptr(),
            len(table),
            query.stride(0),
            layer_kv.stride(0),
            heads,
            kv_heads,
            head_dim,
            _DTYPES[query.dtype],
            _DTYPES[out.dtype],
            self.level,
            torch.get_num_threads(),
            self.kind.window,
            self.kind.scale,
            self.kind.cap,
            self.is_fixed,
        )
        if refused:
            raise ValueError(f"{heads} heads over {kv_heads} KV heads of {head_dim}")


def load_library(library: Path, source: Path) -> Any:
    """A library that was built from `source` and the headers of all kernels.

    :raises KernelUnavailable: it was not built, is of another source, or does not load here.
    """
    if not library.exists():
        raise KernelUnavailable(f"{library.name} was not built: at installation there was no C++ compiler")
    try:
        loaded = ctypes.CDLL(str(library))
        loaded.dunlin_source_digest.restype = ctypes.c_char_p
        digest = loaded.dunlin_source_digest().decode()
    except (OSError, AttributeError) as error:
        raise KernelUnavailable(f"{library.name} does not load: {error}") from error
    if digest != source_digest(source):
        raise KernelUnavailable(f"{library.name} was built from another source: run `python hatch_build.py`")
    return loaded


def source_digest(source: Path) -> str:
    """Of the source and the headers of all kernels: what `hatch_build.py` builds into the library."""
    hasher = hashlib.sha256(source.read_bytes())
    for header in sorted(source.parents[2].glob("*/native/*.h")):
        hasher.update(header.read_bytes())
    return hasher.hexdigest()


def load_kernel(library: Path = LIBRARY, source: Path = SOURCE) -> PagedKernel:
    """:raises KernelUnavailable: as `load_library`."""
    loaded = load_library(library, source)
    function = loaded.dunlin_paged_attention
    i64, i32, f32 = ctypes.c_int64, ctypes.c_int, ctypes.c_float
    function.argtypes = [*[ctypes.c_void_p] * 7, *[i64] * 3, *[i32] * 7, i64, f32, f32, i32]
    return PagedKernel(function, loaded.dunlin_level())
