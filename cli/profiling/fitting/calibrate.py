"""Fits a device to tables of measured operations, with the errors on held-out points.

Knows which table feeds which part of a `Device`. Needs numpy and the tables, which do not ship: the fitted coefficients
do. Errors are of points left out; the fit that is kept uses all.
"""

from math import log2
from pathlib import Path

from cli.profiling.fitting.datasheets import A100, GPUS_PER_SWITCH, DeviceDatasheet
from cli.profiling.fitting.fitted_parts import (
    FitError,
    FittedPart,
    all_reduce_parts,
    attention_part,
    attention_rate,
    cross_validate,
    gemm_part,
    kv_bandwidth,
    nvlink,
    peer_part,
    stream_parts,
)
from cli.profiling.fitting.tables import ATTENTION, COLLECTIVES, GEMM, LAYER_OPS, NETWORK, Table, TableKind, read_table
from dunlin.cost.device import Device, LinkModel, Source
from dunlin.cost.surface import Surface

_AICONFIGURATOR = Source("aiconfigurator (NVIDIA)", "Apache-2.0", "matrix products, attention and collectives")
_VIDUR = Source("Vidur (Microsoft)", "MIT", "element-wise operations on the A100, and its network")


def faster_memory(surface: Surface, factor: float) -> Surface:
    """A stream's surface where the memory is `factor` times as fast: as many more bytes, or tokens of the same row,
    take the same time, and starting one takes what it took.
    """
    first, *others = surface.knots
    return Surface(surface.axes, (tuple(knot + log2(factor) for knot in first), *others), surface.values)


def fit_device(facts: DeviceDatasheet, folder: Path) -> tuple[Device, list[FitError]]:
    """The device fitted to the tables in `folder`, and the errors on held-out points. Raises TableError."""

    def table(name: str, kind: TableKind, device: str = facts.name) -> Table:
        return read_table(folder / f"{device}_{name}.csv.gz", kind)

    gemm = gemm_part(table("gemm", GEMM), facts)
    prefilling = table("prefill_attention", ATTENTION)
    prefill = attention_part("prefill", prefilling)
    decoding = table("decode_attention", ATTENTION)
    decode = attention_part("decode", decoding)
    reduces = all_reduce_parts(table("collectives", COLLECTIVES), facts)
    # Only an A100's element-wise operations and network were measured.
    streams = stream_parts(table("vidur_layer_ops", LAYER_OPS, "a100"))
    network = table("vidur_network", NETWORK, "a100")
    peer, (shortest_s, nvlink_bytes_per_s) = peer_part(network), nvlink(network)
    parts: list[FittedPart] = [gemm, prefill, decode, *reduces.values()]
    if facts is A100:
        parts += [*streams.values(), peer]
    device = Device(
        name=facts.name,
        title=facts.title,
        memory_bytes=facts.memory_bytes,
        flops=facts.flops,
        bytes_per_s=facts.memory_bytes_per_s,
        attention_flops=attention_rate(prefilling),
        kv_bytes_per_s=kv_bandwidth(decoding),
        gemm=gemm.fit(),
        prefill=prefill.fit(),
        decode=decode.fit(),
        all_reduce={gpus: part.fit() for gpus, part in reduces.items()},
        streams={name: faster_memory(part.fit(), facts.stream_scale) for name, part in streams.items()},
        host_link=LinkModel(20e-6, facts.host_bytes_per_s),
        peer_link=LinkModel(20e-6, facts.peer_bytes_per_s or peer.points[-1, 0] / peer.seconds[-1]),
        nvlink=LinkModel(shortest_s, facts.nvlink_bytes_per_s or nvlink_bytes_per_s),
        gpus_per_switch=GPUS_PER_SWITCH,
        node=facts.node,
        load=LinkModel(10.0, 5e9),
        step_fixed_s=0.0,
        sources=(_AICONFIGURATOR, _VIDUR),
        estimated=facts.estimated,
    )
    return device, [error for part in parts for error in cross_validate(part)]
