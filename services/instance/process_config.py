"""Settings of an instance's process beside those of its core: what each of its engine processes is told."""

from dataclasses import dataclass

from dunlin.config.fields import check, section, setting
from services.instance.config import InstanceConfig


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """The engine process. The simulator has a modelled engine instead (--device, --model-shape, --tp)."""

    dtype: str = setting("fp32", "Precision of weights and KV.", choices=("fp32", "bf16"), why="exact on every CPU")
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
    standby: bool = setting(
        True,
        "Whether a second engine process is loaded in advance, to take over from the first.",
        why="a crash then costs about a second; it takes the memory of a process without weights and KV",
    )
    kv_bytes: int = setting(
        256 << 20,
        "Memory for KV, unless instance.kv_cache.max_slots says how many slots.",
        unit="bytes",
        least=1 << 20,
        why="enough for the built-in model on any machine; set it to what the device has left beside the weights",
    )

    def __post_init__(self) -> None:
        check(self)
        if self.deterministic and self.dtype != "fp32":
            raise ValueError(f"deterministic computes in fp32, not {self.dtype}: drop one of the two")


@dataclass(frozen=True, slots=True)
class InstanceProcessConfig(InstanceConfig):
    """All settings of an instance."""

    engine: EngineConfig = section(EngineConfig)
