"""Memory of the instances of `dunlin up`: how they share a GPU, what is refused before a start, what is said after."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from cli.launch.errors import LaunchError
from cli.launch.options import UpOptions
from dunlin.config.errors import ConfigError
from dunlin.config.resolve import Settings
from dunlin.config.sources import Given
from dunlin.engine.device.names import CUDA, device_kind, device_number, granule_bytes
from dunlin.messages.fleet import FleetStatus
from dunlin.model.builtin import PREFIX, models_folder, resolve_model
from dunlin.model.config import ModelConfig, load_config
from dunlin.model.memory_plan import kv_text, model_sizes, size_text
from dunlin.runtime.cuda_driver import gpu_memory_bytes
from dunlin.runtime.memory import available_memory_bytes
from services.instance.memory import told_kv_bytes
from services.instance.process_config import InstanceProcessConfig

SHARE = "instance.engine.gpu_memory_utilization"
_MEMORY, _DEVICE = "instance.engine.memory_bytes", "instance.engine.device"
_RANKS = "instance.engine.ranks"
_SAY_HOW_MUCH = ("instance.kv_cache.max_slots", "instance.engine.kv_bytes", _MEMORY)


def takes_share(settings: Settings) -> bool:
    """Whether KV is what a share of a GPU leaves."""
    return device_kind(settings[_DEVICE]) == CUDA and not any(settings[name] for name in _SAY_HOW_MUCH)


def divided_share(settings: Settings, instances: int, gpus: int) -> Given | None:
    """Each instance's part of the share, where so many instances share `gpus` GPUs; None: it has the whole share.

    With `cuda` they take the GPUs in turn, as many as an instance has ranks: all get the part of those on the fullest
    one.
    """
    places = max(gpus // settings[_RANKS], 1)
    on_one = instances if settings[_DEVICE] != CUDA else -(-instances // places)
    if on_one == 1 or not takes_share(settings):
        return None
    share = settings[SHARE]
    return Given(SHARE, share / on_one, f"dunlin up: {share:g}, divided by {on_one} instances on one GPU")


def check_memory(options: UpOptions, available_bytes: int | None = None) -> None:
    """Raises LaunchError: not so much memory is there, or the model does not fit into what was given."""
    settings, kind = options.settings, device_kind(options.settings[_DEVICE])
    if settings.source(SHARE).startswith("--gpu") and kind != CUDA:
        device = settings[_DEVICE]
        raise LaunchError(
            f"--gpu-memory-utilization with --device {device}: there is no GPU's memory to share; say --memory SIZE"
        )
    memory = settings[_MEMORY]
    there = available_memory_bytes() if available_bytes is None else available_bytes
    if kind != CUDA and memory * options.instances > there:
        each = f" for each of {options.instances} instances" if options.instances > 1 else ""
        raise LaunchError(
            f"--memory {size_text(memory)}{each}: {size_text(there)} are available on this machine or in its control "
            "group; give less, or start fewer instances"
        )
    if not memory or settings["cluster.model"].startswith(PREFIX):
        return  # what is built in is made when it is first used: instances check it
    try:
        config = settings.configure("instance", InstanceProcessConfig)
        told_kv_bytes(config, load_config(Path(settings["cluster.model"])), memory)
    except ConfigError as error:
        raise LaunchError(str(error)) from None


def slots_of(status: FleetStatus | None) -> dict[str, int]:
    """The token slots of each instance, by name."""
    members = () if status is None else status.members
    return {each.address.name: each.instance.capacity_slots for each in members if each.instance is not None}


def memory_lines(settings: Settings, data_dir: Path, slots: Mapping[str, int]) -> Iterator[str]:
    """What instances have: a line for each number of slots."""
    model = load_config(resolve_model(settings["cluster.model"], models_folder(data_dir)))
    for count in sorted(set(slots.values()), reverse=True):
        names = [name for name, has in sorted(slots.items()) if has == count]
        who = "each instance has" if len(slots) == len(names) > 1 else f"{', '.join(names)}:"
        yield f"memory:       {who} {_text(settings, model, count)}"


def _text(settings: Settings, model: ModelConfig, slots: int) -> str:
    engine = settings.configure("instance", InstanceProcessConfig).engine
    weights = model_sizes(model, engine.item_bytes, granule_bytes(engine.device), engine.ranks).weights_bytes
    kv_bytes = slots * model.layers * model.slot_bytes(engine.kv_item_bytes)
    longest = model.max_positions
    short = f"; the model's longest text is {longest:,} tokens" if slots < longest else ""
    return kv_text(slots, kv_bytes, weights, _limit(settings)) + short


def _limit(settings: Settings) -> str:
    """The memory that weights and KV are a part of, in words; empty where nothing but KV was limited."""
    if settings[_MEMORY]:
        return f"--memory {size_text(settings[_MEMORY])}"
    if not takes_share(settings):
        return ""
    whose = "the GPU's" if settings[_RANKS] == 1 else f"each of {settings[_RANKS]} GPUs'"
    return f"{settings[SHARE]:.2g} of {whose} {size_text(gpu_memory_bytes(device_number(settings[_DEVICE])))}"
