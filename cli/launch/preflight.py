"""What can be checked before anything is started, so that a mistake costs one line and no process."""

import fcntl
import importlib.util
import shutil
import socket
import struct
from collections.abc import Sequence
from pathlib import Path

from cli.launch.errors import LaunchError
from cli.launch.memory import check_memory
from cli.launch.options import UpOptions
from dunlin.config.adapters import split_adapters
from dunlin.config.resolve import Settings
from dunlin.engine.device.names import (
    CPU,
    CUDA,
    INTERPRET,
    DeviceNameError,
    check_device_name,
    device_kind,
    device_number,
    lacking_gpus,
)
from dunlin.limits import MOST_NAME_CHARACTERS
from dunlin.membership.endpoints import parse_endpoints, split_endpoint
from dunlin.runtime.cuda_driver import gpu_names
from dunlin.runtime.extras import missing_package_text
from dunlin.runtime.memory import available_memory_bytes

LEAST_FREE_BYTES = 192 << 20
"""For etcd's log and database, the built-in model and the services' logs."""
_OTLP_SCHEMES = ("http://", "https://")
_SIOCGIFADDR = 0x8915
"""Linux: ask for the address of a network interface."""
_NEEDED_BY = {CUDA: ("triton", "cuda"), INTERPRET: ("triton",)}
_NEEDED = ("aiohttp", "grpc_health", "safetensors", "torch", "tokenizers", "xxhash")


def check_options(options: UpOptions) -> None:
    """Raises LaunchError for options that no cluster can start with."""
    _check_installed((*_NEEDED, "cryptography") if options.tls else _NEEDED)
    for name in ("instances", "dispatchers", "managers", "nodes"):
        if getattr(options, name) < 1:
            raise LaunchError(f"--{name} {getattr(options, name)}: a cluster needs at least 1")
    if options.nodes > options.instances:
        raise LaunchError(
            f"--nodes {options.nodes} with --instances {options.instances}: some nodes would have none; use fewer nodes"
        )
    _check_host(options.host)
    _check_settings(options.settings, options.nodes)
    check_memory(options)
    if options.tls and options.etcd:
        raise LaunchError("--tls with --etcd: its CA is made here, and your etcd does not know it; leave one out")
    if options.etcd:
        _check_etcd(options.etcd)
    elif not (options.data_dir / "etcd").exists():
        _check_disk(options.data_dir)


def _check_settings(settings: Settings, nodes: int) -> None:
    """What each service would refuse, in a log of its own."""
    if settings["kvstore.exchange.replicate"] and nodes < 2:
        raise LaunchError("--replicate keeps second copies at another node, and there is one: say --nodes 2")
    if settings["kvstore.exchange.transport"] == "nixl":
        _check_nixl()
    dtype = settings["instance.engine.dtype"]
    if settings["instance.engine.deterministic"] and dtype != "fp32":
        raise LaunchError(f"--deterministic computes in fp32, not {dtype}: drop one of the two")
    kv_dtype = settings["instance.engine.kv_dtype"]
    if settings["instance.engine.deterministic"] and kv_dtype != "auto":
        raise LaunchError(f"--deterministic keeps KV in fp32, not {kv_dtype}: drop one of the two")
    _check_device(
        settings["instance.engine.device"],
        settings["instance.engine.deterministic"],
        settings["instance.engine.ranks"],
    )
    _check_model(settings["cluster.model"])
    _check_adapters(settings)
    _check_ranks(settings)
    _check_name(settings["cluster.model_name"])
    if settings.is_given("kvstore.tier.capacity_bytes"):
        _check_tier(settings["kvstore.tier.capacity_bytes"] >> 20, nodes)
    if settings["monitor.tracing.otlp_url"]:
        _check_collector(settings["monitor.tracing.otlp_url"])
    keys = settings["dispatcher.tenants.keys_file"]
    if keys and not Path(keys).is_file():
        raise LaunchError(f"--keys {keys}: no such file; `dunlin keys add --keys {keys}` makes one")


def _check_device(device: str, deterministic: bool, ranks: int) -> None:
    try:
        check_device_name(device)
    except DeviceNameError as error:
        raise LaunchError(f"--device: {error}") from None
    if deterministic and device != CPU:
        raise LaunchError(f"--deterministic computes on the CPU, not on {device}: drop one of the two")
    lacking = [name for name in _NEEDED_BY.get(device_kind(device), ()) if importlib.util.find_spec(name) is None]
    if lacking:
        packages = ", ".join(lacking)
        raise LaunchError(f"--device {device}: this installation lacks {packages}: pip install 'dunlin[server,gpu]'")
    if device_kind(device) != CUDA:
        return
    number, gpus = device_number(device), gpu_names()
    if number >= len(gpus):
        found = ", ".join(f"{at} ({name})" for at, name in enumerate(gpus)) or "none (see nvidia-smi)"
        raise LaunchError(f"--device {device}: the driver finds these GPUs: {found}; --device cpu needs none")
    if fault := lacking_gpus(device, ranks, len(gpus)):
        raise LaunchError(f"--tp {ranks} --device {device}: {fault}")


def _check_host(host: str) -> None:
    """Listening there is tried: nothing else knows every kind of address that a machine may have."""
    try:
        family = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][0]
    except (OSError, UnicodeError) as error:
        raise LaunchError(f"--host {host}: no such name or address ({getattr(error, 'strerror', error)})") from None
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((host, 0))
    except OSError:
        known = ", ".join(("127.0.0.1 (this machine alone)", *own_addresses(), "0.0.0.0 (all of them)"))
        raise LaunchError(f"--host {host}: this machine has no such address; choose of {known}") from None


def own_addresses() -> list[str]:
    """The IPv4 addresses of this machine's networks, without the loopback."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:  # a network without an address
                continue
            found.append(socket.inet_ntoa(answer[20:24]))
    return [address for address in found if not address.startswith("127.")]


def _check_name(name: str) -> None:
    """Clients write it in JSON and paths; operators read it in a line."""
    if len(name) > MOST_NAME_CHARACTERS or not name.isprintable() or name != name.strip():
        raise LaunchError(
            f"--model-name {name!r}: give printable text of at most {MOST_NAME_CHARACTERS} characters, "
            "no space around it"
        )


def _check_tier(mib: int, nodes: int) -> None:
    there = available_memory_bytes() >> 20
    if mib * nodes > there:
        each = f" for each of {nodes} nodes" if nodes > 1 else ""
        raise LaunchError(f"--tier-mib {mib}{each}: {there} MiB of memory are available; choose less")


def _check_collector(url: str) -> None:
    if not url.startswith(_OTLP_SCHEMES) or not url.partition("://")[2]:
        raise LaunchError(f"--otlp {url}: no endpoint of OTLP over gRPC; give http://HOST:4317 or https://HOST:4317")
    if importlib.util.find_spec("opentelemetry") is None:
        raise LaunchError(f"--otlp: {missing_package_text('opentelemetry', extra='server,otel')}")


def _check_disk(data_dir: Path) -> None:
    """An embedded etcd sets room aside when it first starts, and says nothing that helps if there is none."""
    there = next(folder for folder in (data_dir, *data_dir.parents) if folder.exists())
    free = shutil.disk_usage(there).free
    if free < LEAST_FREE_BYTES:
        raise LaunchError(
            f"--data-dir {data_dir}: {free >> 20} MiB are free there, {LEAST_FREE_BYTES >> 20} are needed; "
            "make room or name another folder"
        )


def _check_installed(needed: Sequence[str]) -> None:
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise LaunchError(missing_package_text(*missing))


def _check_nixl() -> None:
    from dunlin.transport.one_sided.nixl_agent import is_installed

    if not is_installed():
        raise LaunchError(
            "--transport nixl: NIXL is not installed: pip install 'dunlin[nodes]', or say --transport sockets"
        )


def _check_model(model: str) -> None:
    from cli.launch.checkpoint_check import examine_checkpoint
    from dunlin.model.builtin import NAMES, PREFIX

    if model.startswith(PREFIX):
        if model.removeprefix(PREFIX) not in NAMES:
            known = " and ".join(PREFIX + name for name in NAMES)
            raise LaunchError(f"--model {model}: the built-in models are {known}; or give a checkpoint's directory")
        return
    faults = examine_checkpoint(Path(model)).faults
    if faults:
        more = f" (and {len(faults) - 1} more: dunlin model show {model})" if len(faults) > 1 else ""
        raise LaunchError(f"--model {faults[0]}{more}")


def _check_adapters(settings: Settings) -> None:
    from dunlin.model.builtin import served_name
    from dunlin.model.config import load_config
    from dunlin.model.lora.adapter import examine_adapter

    model, adapters = settings["cluster.model"], split_adapters(settings["cluster.lora"])
    if served_name(model, settings["cluster.model_name"]) in adapters:
        raise LaunchError(f"--lora {next(iter(adapters))}=…: the model itself has that name; choose another")
    if model.startswith("builtin:"):
        return  # made when it is first used: the services check the adapters
    for name, directory in adapters.items():
        faults = examine_adapter(Path(directory), load_config(Path(model)))[1]
        if faults:
            raise LaunchError(f"--lora {name}: {faults[0]}")


def _check_ranks(settings: Settings) -> None:
    from dunlin.model.config import load_config
    from dunlin.model.rank_part import RankError, check_ranks

    model, ranks = settings["cluster.model"], settings["instance.engine.ranks"]
    if ranks > 1 and settings["cluster.lora"]:
        raise LaunchError(f"--tp {ranks} with --lora: adapters are computed by one rank; drop one of the two")
    if ranks == 1 or model.startswith("builtin:"):
        return  # what is built in is checked by the services, which make it
    try:
        check_ranks(load_config(Path(model)), ranks)
    except RankError as error:
        raise LaunchError(f"--tp {ranks}: {model}: {error}") from None


def _check_etcd(text: str) -> None:
    """One of the endpoints must answer; which of them is the services' own choice."""
    try:
        endpoints = parse_endpoints(text)
    except ValueError as error:
        raise LaunchError(f"--etcd {text}: {error}") from None
    problems = [_why_unreachable(endpoint) for endpoint in endpoints]
    if all(problems):
        raise LaunchError(
            f"etcd unreachable ({'; '.join(problems)}): start it, correct --etcd, or leave it out for an embedded one"
        )


def _why_unreachable(endpoint: str) -> str:
    """Empty when a process listens there."""
    try:
        socket.create_connection(split_endpoint(endpoint), timeout=3).close()
    except OSError as error:
        return f"{endpoint}: {(error.strerror or str(error)).lower()}"
    return ""
