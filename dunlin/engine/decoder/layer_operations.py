"""What the parts of a layer are made of, be they computed whole (`Decoder`) or by columns (`LayerProducts`)."""

from torch import Tensor
from torch.nn import functional as F

from dunlin.engine.decoder.experts import by_expert, expert_shares, gated
from dunlin.engine.decoder.loading.weights import Weights
from dunlin.engine.decoder.lora.loading import AdapterSet
from dunlin.engine.decoder.numerics import Numerics
from dunlin.engine.ranks.collective import Collective
from dunlin.model.config import ModelConfig


class LayerOperations:
    """Norms, activation, experts' shares, what adapters add, and sums over ranks, as a model and its numerics have
    them. A layer has a variation where it has its block of weights.
    """

    def __init__(
        self, config: ModelConfig, weights: Weights, numerics: Numerics, adapters: AdapterSet, collective: Collective
    ) -> None:
        self.config = config
        self.numerics = numerics
        self.collective = collective
        self.norm = self._offset_norm if config.norm_offset else self._plain_norm
        self._is_silu = config.activation == "silu"
        self.activate = numerics.silu_gate if self._is_silu else gated(config.activation)
        self._weights = weights
        self._adapters = adapters

    def weights(self, layer: int) -> dict[str, Tensor]:
        """The blocks of a layer that is held."""
        return self._weights.layers[layer]

    def opens_gates(self, weights: dict[str, Tensor], has_adapters: bool) -> bool:
        """Whether the numerics may open the gates of a layer's MLP within the product that makes them."""
        return self._is_silu and not has_adapters and "gate_up_bias" not in weights

    def adapt(self, layer: int, block: str, adapters: Tensor, given: Tensor, out: Tensor) -> None:
        """Add to `out`, the block's product of `given`, what the rows' adapters do."""
        deltas = self._adapters.layers[layer].get(block)
        if deltas is not None:
            self.numerics.add_deltas(self.numerics.linear, adapters, deltas, given, out)

    def sum(self, part: Tensor, bias: Tensor | None) -> Tensor:
        """The product of a block whose inputs the ranks share among them, of which `part` is this rank's."""
        total = self.collective.all_reduce(part)
        return total if bias is None else total + bias

    def after(self, post_norm: Tensor | None, result: Tensor) -> Tensor:
        """What is added to the residual."""
        return result if post_norm is None else self.norm(result, post_norm)

    def shares(self, weights: dict[str, Tensor], normed: Tensor) -> Tensor:
        """Of each expert in each token; see `expert_shares`."""
        assert self.config.experts is not None
        return expert_shares(self.numerics.linear(normed, weights["router"], None), self.config.experts)

    def by_expert(self, weights: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """The experts' weights before and after their gates, `[experts, rows of one, inputs]` each."""
        assert self.config.experts is not None
        count = self.config.experts.count
        return by_expert(weights["expert_gate_up"], count), by_expert(weights["expert_down"], count)

    def _plain_norm(self, hidden: Tensor, weight: Tensor) -> Tensor:
        return self.numerics.norm(hidden, weight, self.config.norm_eps)

    def _offset_norm(self, hidden: Tensor, weight: Tensor) -> Tensor:
        """In fp32: near 0 the weights are finer than their sum with the offset."""
        shifted = weight.float() + self.config.norm_offset
        return F.rms_norm(hidden.float(), weight.shape, shifted, self.config.norm_eps).to(hidden.dtype)
