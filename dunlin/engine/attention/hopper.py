"""What GPUs have from Hopper on: the tensor memory accelerator, which copies blocks of a tensor, and programmatic
dependent launch: a kernel of a stream begins while the one before it still computes, and waits where it reads what that
one writes.

So the start of a kernel costs less time. Every program of a kernel that is launched so begins with `begin_dependent`:
then all before it is complete once it goes on, and what the next kernel reads is complete for the same reason.
"""

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra import cuda

HOPPER = (9, 0)


@cache
def has_tensor_memory() -> bool:
    """Whether blocks can be copied by a tensor descriptor; Triton's interpreter does the same."""
    return triton.knobs.runtime.interpret or torch.cuda.get_device_capability() >= HOPPER


@cache
def launch_options() -> dict[str, Any]:
    """Arguments of a launch of kernels that take IS_DEPENDENT: whether the GPU has it."""
    is_there = not triton.knobs.runtime.interpret and torch.cuda.get_device_capability() >= HOPPER
    return {"IS_DEPENDENT": True, "launch_pdl": True} if is_there else {"IS_DEPENDENT": False}


@triton.jit
def begin_dependent(IS_DEPENDENT: tl.constexpr):
    """Let the next kernel begin, and wait for the ones before."""
    if IS_DEPENDENT:
        cuda.gdc_launch_dependents()
        cuda.gdc_wait()
