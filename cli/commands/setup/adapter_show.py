"""`dunlin model show DIR` where DIR holds a LoRA adapter: what it changes, and whether dunlin can serve it."""

from dataclasses import dataclass
from pathlib import Path

from cli.common.output import table
from dunlin.model.config import load_config
from dunlin.model.config_reader import read_json
from dunlin.model.errors import ModelError
from dunlin.model.lora.adapter import examine_adapter
from dunlin.model.lora.config import CONFIG_FILE


@dataclass(frozen=True, slots=True)
class AdapterSummary:
    """What was found. `modules`: how many of each kind are adapted; `problems` empty: dunlin serves it with `base`."""

    directory: str
    base: str
    digest: str
    modules: dict[str, int]
    ranks: tuple[int, ...]
    scales: tuple[float, ...]
    parameters: int
    memory_bytes_fp32: int
    servable: bool
    problems: tuple[str, ...]


def base_named_by(directory: Path) -> str:
    """The model that the adapter's own configuration names.

    Raises:
        ModelError: the configuration cannot be read, or names none.
    """
    named = read_json(directory / CONFIG_FILE).get("base_model_name_or_path")
    if not isinstance(named, str) or not named:
        raise ModelError(directory, "names no model that it is for", "say --base DIR")
    return named


def summarize_adapter(directory: Path, base: Path) -> AdapterSummary:
    """Look at an adapter for the model in `base`.

    Raises:
        ModelError: the model cannot be served.
    """
    try:
        config = load_config(base)
    except ModelError as error:
        raise ModelError(
            error.path, f"the adapter's model: {error.what}", "say --base DIR with its checkpoint"
        ) from None
    adapter, faults = examine_adapter(directory, config)
    modules = adapter.modules if adapter is not None else {}
    kinds: dict[str, int] = {}
    for name in modules:
        kind = name.rpartition(".")[2]
        kinds[kind] = kinds.get(kind, 0) + 1
    return AdapterSummary(
        directory=str(directory),
        base=str(base),
        digest=adapter.digest if adapter is not None else "",
        modules=kinds,
        ranks=tuple(sorted({module.rank for module in modules.values()})),
        scales=tuple(sorted({module.scale for module in modules.values()})),
        parameters=adapter.parameters if adapter is not None else 0,
        memory_bytes_fp32=4 * adapter.parameters if adapter is not None else 0,
        servable=not faults,
        problems=tuple(str(fault).removeprefix(f"{directory}/") for fault in faults),
    )


def render_adapter(shown: AdapterSummary) -> list[str]:
    """As two columns, without the problems."""
    modules = ", ".join(f"{kind} ({count})" for kind, count in shown.modules.items())
    size = shown.memory_bytes_fp32
    rows = [
        ("directory", shown.directory),
        ("LoRA adapter for", shown.base),
        ("modules", modules or "?"),
        ("ranks", ", ".join(map(str, shown.ranks)) or "?"),
        ("scales", ", ".join(f"{scale:g}" for scale in shown.scales) or "?"),
        ("memory", f"{shown.parameters:,} parameters: {size:,} bytes in fp32, {size // 2:,} in bf16, each engine"),
        ("digest", shown.digest or "?"),
        ("dunlin serves it", "yes" if shown.servable else "no:"),
    ]
    return [line.rstrip() for line in table(("", ""), rows).splitlines()[1:]]
