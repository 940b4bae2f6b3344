"""Sections that several roles have. Pure."""

from dataclasses import dataclass

from dunlin.config.adapters import split_adapters
from dunlin.config.fields import check, setting
from dunlin.policies.presets import DEFAULT_PRESET, PRESETS


@dataclass(frozen=True, slots=True)
class ReportsConfig:
    """What a service reports to the monitor."""

    interval_s: float = setting(
        0.5,
        "Time between two regular reports to the monitor.",
        unit="seconds",
        above=0,
        why="six reports fit into the 3 s after which the monitor calls a process silent",
    )

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """What all services of a cluster are told alike."""

    preset: str = setting(
        DEFAULT_PRESET,
        "The choice of policies, one per decision point (docs/presets.md). Each policy is a setting of its own too.",
        choices=tuple(PRESETS),
        why="chat, batch work and long prompts share instances, and chat alone is served as by chunked prefill",
    )
    model: str = setting(
        "builtin:tiny",
        "The model: `builtin:tiny`, `builtin:chat`, or the directory of a Hugging Face checkpoint. Dispatchers read "
        "its tokenizer and its limits, instances its weights. The simulator takes --model-shape instead.",
        why="needs no download",
    )
    model_name: str = setting(
        "",
        "What clients call the model in their requests. Empty: `builtin:NAME`, or the name of the directory.",
        why="the directory's name is what most deployments mean",
    )
    lora: tuple[str, ...] = setting(
        (),
        "LoRA adapters of the model, each as NAME=DIR with the directory as PEFT writes it; requests name one as their "
        "model. All are in the memory of every instance (docs/models.md). At most 64, of rank 512 at most.",
        why="the model itself",
    )

    def __post_init__(self) -> None:
        check(self)
        split_adapters(self.lora)
