"""What is run: the sizes of a GPU's run, and tiny ones for Triton's interpreter."""

from dataclasses import dataclass

from dunlin.engine.decoder.loading.random_checkpoint import CheckpointShape


@dataclass(frozen=True, slots=True)
class SpeedShape:
    """A Llama's shape with random weights in bf16; KV for `slots` tokens at most."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    slots: int

    @property
    def layer_parameters(self) -> int:
        """Weights of a layer's products."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        return attention + 3 * self.hidden * self.intermediate

    @property
    def kv_bytes(self) -> int:
        """Of one token in all layers."""
        return 2 * self.layers * 2 * self.kv_heads * self.head_dim


@dataclass(frozen=True, slots=True)
class GpuPlan:
    """Everything that a run computes. `decode`: (rows, context). `steps`: decode steps that are timed."""

    is_interpreted: bool
    equal: CheckpointShape
    texts: tuple[int, ...]
    generated: int
    speed: SpeedShape
    prefill: tuple[int, ...]
    decode: tuple[tuple[int, int], ...]
    mixed: tuple[int, int, int]
    steps: int
    repeats: int
    interrupts: int
    interrupted_tokens: int
    dropped_layers: int
    copied_tokens: int
    matrix: int
    copy_mib: int


GPU = GpuPlan(
    is_interpreted=False,
    equal=CheckpointShape(8, 1024, 16, 4, 64, 2816, 8192, dtype="bfloat16", max_positions=8192),
    texts=(1, 7, 64, 300, 1100),
    generated=48,
    speed=SpeedShape(32, 4096, 32, 8, 128, 14336, 128256, slots=600_000),
    prefill=(512, 2048, 8192, 32768),
    decode=(*((rows, context) for context in (512, 4096) for rows in (1, 16, 64, 256)), (16, 16384), (2, 65536)),
    mixed=(64, 512, 2048),
    steps=24,
    repeats=3,
    interrupts=100,
    interrupted_tokens=32768,
    dropped_layers=8,
    copied_tokens=4096,
    matrix=8192,
    copy_mib=4096,
)
TINY = GpuPlan(
    is_interpreted=True,
    equal=CheckpointShape(3, 64, 4, 2, 16, 96, 512, dtype="float32", max_positions=512),
    texts=(1, 7, 20),
    generated=4,
    speed=SpeedShape(2, 64, 4, 2, 16, 96, 512, slots=2048),
    prefill=(16, 40),
    decode=((1, 20), (3, 20)),
    mixed=(2, 20, 12),
    steps=2,
    repeats=1,
    interrupts=2,
    interrupted_tokens=40,
    dropped_layers=1,
    copied_tokens=32,
    matrix=64,
    copy_mib=1,
)
