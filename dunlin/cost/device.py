"""A device as fitted coefficients: how long its operations take, what it holds, and where the figures come from.

Reads and writes `devices/*.json`. Knows no model shape (`compose` does) and no measured table (`calibrate` does).
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib.resources import files
from typing import Any

from dunlin.cost.device_variants import VARIANTS, variant_of
from dunlin.cost.links import NodeLinks
from dunlin.cost.surface import Surface


class DeviceError(ValueError):
    """No such device, or its file is damaged; the message says which and what is known."""


@dataclass(frozen=True, slots=True)
class LinkModel:
    """A path for bytes: its fixed cost per use, and its bandwidth."""

    fixed_s: float
    bytes_per_s: float

    def transfer_s(self, byte_count: float) -> float:
        """Seconds to move that many bytes."""
        return self.fixed_s + byte_count / self.bytes_per_s


@dataclass(frozen=True, slots=True)
class Source:
    """The source of the measurements that a part was fitted to, and their licence."""

    name: str
    licence: str
    what: str


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU model and its links. Surfaces give seconds.

    `gemm` over (m, n, k). `prefill` over (queries, mean keys of a query, query heads per kv head, kv heads), `decode`
    over (rows, mean context, query heads per kv head, kv heads), both for one layer with heads of 128. `all_reduce`
    over bytes, per number of GPUs. `streams` by operation: `norm`, `rope` and `activation` over (tokens, bytes of a
    row), `add` over bytes. `flops` and `bytes_per_s` are the data sheet's peaks, which no operation exceeds;
    `attention_flops` and `kv_bytes_per_s` the best rates at which prefill attention was measured to compute, and decode
    attention to read KV. Links of one GPU and one direction: `host_link` over PCIe, whose way to the host
    `gpus_per_switch` share, `peer_link` over the network to another node, `nvlink` within one. `node`: what the GPUs of
    a node share.
    """

    name: str
    title: str
    memory_bytes: int
    flops: float
    bytes_per_s: float
    attention_flops: float
    kv_bytes_per_s: float
    gemm: Surface
    prefill: Surface
    decode: Surface
    all_reduce: Mapping[int, Surface]
    streams: Mapping[str, Surface]
    host_link: LinkModel
    peer_link: LinkModel
    nvlink: LinkModel
    gpus_per_switch: int
    node: NodeLinks
    load: LinkModel
    step_fixed_s: float
    sources: tuple[Source, ...] = ()
    estimated: Mapping[str, str] = field(default_factory=dict)
    """Parts that no table measured, with how each was estimated."""

    def as_json(self) -> dict[str, Any]:
        """The device as JSON, which `device_of` reads back."""
        plain = asdict(self)
        for name in ("gemm", "prefill", "decode"):
            plain[name] = getattr(self, name).as_json()
        plain["streams"] = {name: surface.as_json() for name, surface in self.streams.items()}
        plain["all_reduce"] = {str(gpus): surface.as_json() for gpus, surface in self.all_reduce.items()}
        return plain


def device_of(data: Mapping[str, Any]) -> Device:
    """The device in a parsed file. Raises DeviceError naming what is missing or wrong."""
    try:
        parts = dict(data)
        for name in ("gemm", "prefill", "decode"):
            parts[name] = Surface.from_json(data[name])
        parts["all_reduce"] = {int(gpus): Surface.from_json(part) for gpus, part in data["all_reduce"].items()}
        parts["streams"] = {name: Surface.from_json(part) for name, part in data["streams"].items()}
        parts |= {name: LinkModel(**data[name]) for name in ("host_link", "peer_link", "nvlink", "load")}
        parts["node"] = NodeLinks(**data["node"])
        parts["sources"] = tuple(Source(**part) for part in data["sources"])
        return Device(**parts)
    except (KeyError, TypeError, ValueError) as error:
        raise DeviceError(f"the coefficients of {data.get('name', 'a device')} are damaged: {error!r}") from error


LINKS = ("pcie", "nvlink", "nic", "memory", "node-nic")
"""The links whose bandwidth can be given: of one GPU, and of a node."""


def with_links(device: Device, bytes_per_s: Mapping[str, float]) -> Device:
    """The device with other bandwidths, by names out of `LINKS`. Raises DeviceError."""
    for name, rate in bytes_per_s.items():
        if name not in LINKS or not rate > 0:
            raise DeviceError(f"no link {name!r} of {rate:g} bytes/s: links are {', '.join(LINKS)}, of more than 0")

    def link(old: LinkModel, name: str) -> LinkModel:
        return replace(old, bytes_per_s=bytes_per_s.get(name, old.bytes_per_s))

    node = device.node
    return replace(
        device,
        host_link=link(device.host_link, "pcie"),
        nvlink=link(device.nvlink, "nvlink"),
        peer_link=link(device.peer_link, "nic"),
        node=NodeLinks(bytes_per_s.get("memory", node.memory), bytes_per_s.get("node-nic", node.nic)),
    )


def known_devices() -> list[str]:
    """The names of devices that ship with the package, and of those that differ from one in memory or NVLink alone."""
    folder = files("dunlin.cost").joinpath("devices")
    names = (entry.name.removesuffix(".json") for entry in folder.iterdir() if entry.name.endswith(".json"))
    return sorted([*VARIANTS, *(name for name in names if "." not in name)])


def find_device(name: str) -> Device:
    """A device that ships with the package, or a variant of one. Raises DeviceError."""
    if name.lower() not in known_devices():
        raise DeviceError(f"no device is called {name!r}; known: {', '.join(known_devices())}")
    variant = VARIANTS.get(name.lower())
    if variant is not None:
        return variant_of(find_device(variant.like), name.lower(), variant)
    return device_of(json.loads(files("dunlin.cost").joinpath("devices", f"{name.lower()}.json").read_text()))
