"""Compiles attention's tiles for a Hopper GPU, without one, and prints the shared memory that each takes, bytes.

A program of its own: Triton must not have been told to interpret. Arguments: numbers of a head.
"""

import sys
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from dunlin.engine.attention import triton_kernels as kernels
from dunlin.engine.attention.tile_sizes import SHAPED_DIM, SIZES, TileShape

HOPPER = GPUTarget("cuda", 90, 32)
HEADS, KV_HEADS = 8, 2
TYPES = {"query": "*{}", "layer_kv": "*{}", "there": "*{}", "out": "*{}", "lse": "*fp32", "table": "*i64",
         "slot_at": "*i64", "tiles": "*i64", "run_at": "*i64", "run_slot": "*i64", "slots": "*i32", "scale": "fp32",
         "cap": "fp32"}  # fmt: skip


def shared_bytes(shape: TileShape, head_dim: int, item: str, is_by_run: bool = False, kv_item: str = "") -> int:
    """Of a tile's program. `kv_item`: of KV, where it is not of the queries' type."""
    constants: dict[str, Any] = {
        "HEADS": HEADS, "KV_HEADS": KV_HEADS, "HEAD_DIM": head_dim, "BLOCK_DIM": triton.next_power_of_2(head_dim),
        "LINES": shape.lines, "BLOCK_KEYS": shape.keys, "SPLIT_KEYS": SIZES.split_keys, "SPLIT_STEP": SIZES.narrow.keys,
        "MOST_SPLITS": 1 if is_by_run else SIZES.most_splits, "IS_BY_TILE": not is_by_run, "IS_BY_RUN": is_by_run,
        "IS_CAPPED": False, "IS_WINDOWED": False, "IS_WIDENED": False, "IS_BY_HEAD": not is_by_run,
        "IS_DEPENDENT": True,
    }  # fmt: skip
    names = kernels.attend_tiles.arg_names
    types = {name: "constexpr" if name in constants else TYPES.get(name, "i32").format(item) for name in names}
    if kv_item:
        types["layer_kv"] = types["there"] = f"*{kv_item}"
    if is_by_run:
        types["there"] = f"tensordesc<{item}[{shape.keys},{head_dim}]>"
    aligned = {
        (at,): [["tt.divisibility", 16]]
        for at, name in enumerate(names)
        if types[name].startswith("*") or name.endswith("stride")
    }
    options = {"num_warps": shape.warps, "num_stages": shape.stages, "launch_pdl": True}
    source = ASTSource(kernels.attend_tiles, types, constants, aligned)
    return int(triton.compile(source, target=HOPPER, options=options).metadata.shared)


def main() -> None:
    """Print a line for each tile."""
    for head_dim in map(int, sys.argv[1:]):
        for dtype, item in ((torch.bfloat16, "bf16"), (torch.float32, "fp32")):
            for shape in SIZES.shapes(HEADS, KV_HEADS, head_dim, dtype):
                print(head_dim, item, shape.lines, shared_bytes(shape, head_dim, item))
                print(head_dim, item, shape.lines, "KV in fp8", shared_bytes(shape, head_dim, item, kv_item="fp8e4nv"))
        _, wide = SIZES.shapes(HEADS, KV_HEADS, head_dim, torch.bfloat16)
        if head_dim <= SHAPED_DIM:
            print(head_dim, "bf16", wide.lines, "by runs", shared_bytes(wide, head_dim, "bf16", is_by_run=True))


if __name__ == "__main__":
    main()
