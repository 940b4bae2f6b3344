"""Experts: each computes the tokens that chose it, and the host waits for the device once to know which."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from dunlin.engine.decoder.experts import expert_shares, gated, mix_gathered
from dunlin.engine.decoder.numerics import plain_linear
from dunlin.model.layer_config import ExpertConfig

TOKENS, HIDDEN, WIDTH = 23, 8, 6
CONFIG = ExpertConfig(count=5, active=2, width=WIDTH, renormalise=True)
SIZE_OF_VALUES = (torch.ops.aten.nonzero.default, torch.ops.aten.masked_select.default)
"""Operations whose result is as large as a tensor's values say: on a GPU the host waits to learn it."""


class Called(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Remembers what was called."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[object] = []

    def __torch_dispatch__(
        self, func: Any, types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self.found.append(func)
        return func(*args, **(kwargs or {}))


def make_inputs() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Tokens, shares, and the weights; no token chose expert 3."""
    random = torch.Generator().manual_seed(3)
    logits = torch.randn(TOKENS, CONFIG.count, generator=random)
    logits[:, 3] = -50.0
    gate_up = torch.randn(CONFIG.count, 2 * WIDTH, HIDDEN, generator=random)
    down = torch.randn(CONFIG.count, HIDDEN, WIDTH, generator=random)
    return torch.randn(TOKENS, HIDDEN, generator=random), expert_shares(logits, CONFIG), gate_up, down


def test_every_expert_computes_the_tokens_that_chose_it() -> None:
    normed, shares, gate_up, down = make_inputs()
    wanted = torch.zeros(TOKENS, HIDDEN)
    for expert in (0, 1, 2, 4):
        rows = [token for token in range(TOKENS) if shares[token, expert]]
        fed = F.linear(gated("silu")(F.linear(normed[rows], gate_up[expert])), down[expert])
        wanted[rows] += fed * shares[rows, expert, None]
    assert torch.equal(mix_gathered(normed, shares, gate_up, down, plain_linear, gated("silu")), wanted)


def test_no_token_may_have_chosen_any() -> None:
    normed, shares, gate_up, down = make_inputs()
    none = mix_gathered(normed, torch.zeros_like(shares), gate_up, down, plain_linear, gated("silu"))
    assert torch.equal(none, torch.zeros(TOKENS, HIDDEN))
    empty = mix_gathered(normed[:0], shares[:0], gate_up, down, plain_linear, gated("silu"))
    assert empty.shape == (0, HIDDEN)


def test_which_tokens_chose_an_expert_is_asked_once_for_all_of_them() -> None:
    normed, shares, gate_up, down = make_inputs()
    with Called() as called:
        mix_gathered(normed, shares, gate_up, down, plain_linear, gated("silu"))
    assert not [each for each in called.found if each in SIZE_OF_VALUES]
    assert called.found.count(torch.ops.aten.nonzero_static.default) == 1
