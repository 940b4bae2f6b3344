"""Settings of an instance's process beside those of its core: what its engine processes and their helper are told."""

from dataclasses import dataclass

from dunlin.config.fields import check, section, setting
from dunlin.engine.device.names import CPU, check_device_name
from dunlin.model.kv_dtypes import KV_DTYPES, NARROW, precision_of
from dunlin.model.rank_part import MOST_RANKS
from services.instance.config import InstanceConfig

DTYPES = {"fp32": ("float32", 4), "bf16": ("bfloat16", 2)}
"""The engine's name of a precision, and bytes of an item."""
DEFAULT_KV_BYTES = 256 << 20
"""Where nothing says how much, and the device is not a GPU."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """The engine process. The simulator has a modelled engine instead (--device, --model-shape, --tp)."""

    dtype: str = setting(
        "fp32",
        "Precision of weights, and of KV unless kv_dtype says otherwise.",
        choices=("fp32", "bf16"),
        why="exact on every CPU",
    )
    kv_dtype: str = setting(
        "auto",
        "Numbers of KV: `auto`, as dtype says, or `fp8` (E4M3, without scales): half the memory of bf16, and half the "
        "time to move it. Keys and values are rounded to 3 bits of mantissa, so answers differ a little. Not with the "
        "deterministic mode. On the CPU attention is slower with it: no kernel there reads it.",
        choices=tuple(KV_DTYPES),
        why="answers are those of the checkpoint",
    )
    device: str = setting(
        CPU,
        "What the engine computes on: `cpu`, `cuda:N` (NVIDIA GPU number N of this machine), `cuda` (instance I of the "
        "cluster takes GPU I modulo their number), or `interpret` (a GPU's code on the CPU, for tests: very slow). On "
        "a GPU KV ends with the engine's process, and other engines reach it by the host tier alone.",
        why="it is there on every machine",
    )
    deterministic: bool = setting(
        False, "Bit-equal tokens in any batch. fp32 only, and slower.", why="costs speed that few need"
    )
    threads: int = setting(
        1,
        "Compute threads of the engine at most. The sum over a node's instances should not exceed its cores. "
        "`dunlin up` shares all cores but one among the instances where this is not said.",
        unit="threads",
        least=1,
        why="the only number that is safe without knowing what else runs on the machine",
    )
    ranks: int = setting(
        1,
        "Processes that compute each layer together, each with some of the heads and a share of the threads (tensor "
        "parallelism). Must divide the model's attention heads, key-value heads and MLP columns. With `cuda` or "
        "`cuda:N` each has a GPU of its own, numbered one after the other from the first's. Not with the "
        "deterministic mode, adapters or models with experts.",
        unit="processes",
        least=1,
        most=MOST_RANKS,
        why="threads share a layer of a small model at less cost",
    )
    standby: bool = setting(
        True,
        "Whether a second engine process is loaded in advance, to take over from the first.",
        why="a crash then costs about a second; it takes the memory of a process without weights and KV",
    )
    profile: str = setting(
        "",
        "The store with a profile of such an engine (`dunlin profile --out` with the same model, device, dtype, "
        "threads and --tp on such a machine): policies that aim at objectives predict the times of steps from it. "
        "Empty: the data directory's store; if that has no such profile, they are learnt from the steps that are "
        "served, and kept there.",
        why="`dunlin profile` keeps it there",
    )
    kv_bytes: int = setting(
        0,
        "Memory for KV, unless instance.kv_cache.max_slots says how many slots. 0: what memory_bytes leaves; if that "
        "is 0 too, on a GPU what gpu_memory_utilization leaves, on the CPU 256 MiB.",
        unit="bytes",
        least=0,
        why="256 MiB are enough for the built-in model on any machine; a GPU has nothing else to do",
    )
    memory_bytes: int = setting(
        0,
        "Memory for weights and KV of the engine, on any device: what the weights leave is KV. Refused where KV for "
        "2048 tokens (the longest text of the model, if that is shorter) does not fit, or the machine has less "
        "available. Not with kv_bytes or instance.kv_cache.max_slots. 0: they, or the device, say.",
        unit="bytes",
        least=0,
        why="a machine has other uses for its memory, which only its user knows",
    )
    gpu_memory_utilization: float = setting(
        0.9,
        "Share of a GPU's whole memory that the engine may use in all: weights, KV and work space (vLLM's word). What "
        "weights and the largest step leave is KV, as far as it is free. Counts only on a GPU, and only where neither "
        "kv_bytes, memory_bytes nor instance.kv_cache.max_slots is given. `dunlin up` divides it among the instances "
        "that it puts on one GPU.",
        unit="share of the GPU's memory",
        above=0,
        most=1,
        why="vLLM's; the rest is for what is counted too low, and for a screen",
    )

    def __post_init__(self) -> None:
        check(self)
        if self.kv_bytes and self.memory_bytes:
            raise ValueError("engine.kv_bytes and engine.memory_bytes (--memory) both say how much: drop one of them")
        if self.deterministic and self.dtype != "fp32":
            raise ValueError(f"deterministic computes in fp32, not {self.dtype}: drop one of the two")
        if self.deterministic and self.kv_dtype != "auto":
            raise ValueError(f"deterministic keeps KV in fp32, not {self.kv_dtype}: drop one of the two")
        check_device_name(self.device)
        if self.deterministic and self.device != CPU:
            raise ValueError(f"deterministic computes on the CPU, not on {self.device}: drop one of the two")
        if self.ranks > 1 and self.deterministic:
            raise ValueError(f"deterministic computes with one rank, not with {self.ranks}: drop one of the two")

    @property
    def item_bytes(self) -> int:
        """Of the weights."""
        return DTYPES[self.dtype][1]

    @property
    def kv_item_bytes(self) -> int:
        """Of KV."""
        return NARROW.get(KV_DTYPES[self.kv_dtype], self.item_bytes)

    @property
    def precision(self) -> str:
        """What the time of a step depends on."""
        return precision_of(self.dtype, self.kv_dtype)


@dataclass(frozen=True, slots=True)
class PeerTransfersConfig:
    """KV and activations straight from this engine into the memory of engines on other nodes, and back."""

    between_nodes: str = setting(
        "sockets",
        "How they go. `sockets`: TCP from a helper process beside one engine to that of the other, with --tls-dir "
        "under mutual TLS; `off`: KV goes by the host tiers, which it also does where the other side has no helper.",
        choices=("sockets", "off"),
        why="one copy instead of three, and no room in the host tiers",
    )
    port: int = setting(
        0,
        "The port of the --listen address where the helper answers those of other nodes; 0: any free one. Instances of "
        "one node need different ones.",
        unit="port",
        least=0,
        most=65535,
        why="instances tell each other their ports; say one where a firewall stands between nodes",
    )
    stall_timeout_s: float = setting(
        5.0,
        "A connection that takes or brings nothing for so long in the midst of a copy is given up.",
        unit="seconds",
        above=0,
        why="longer than a network's hiccup, as kvstore.exchange.stall_timeout_s",
    )

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class InstanceProcessConfig(InstanceConfig):
    """All settings of an instance."""

    engine: EngineConfig = section(EngineConfig)
    peer_transfers: PeerTransfersConfig = section(PeerTransfersConfig)

    def __post_init__(self) -> None:
        if self.engine.memory_bytes and self.kv_cache.max_slots:
            raise ValueError(
                "engine.memory_bytes (--memory) and kv_cache.max_slots (--slots) both say how much KV: drop one of them"
            )
