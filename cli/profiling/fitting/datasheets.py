"""Data-sheet figures of the devices whose tables are fitted, and estimates for parts that no table has."""

from collections.abc import Mapping
from dataclasses import dataclass

from dunlin.cost.links import NodeLinks


@dataclass(frozen=True, slots=True)
class DeviceDatasheet:
    """Data-sheet figures of a device, and estimates for parts that no table measured."""

    name: str
    title: str
    memory_bytes: int
    memory_bytes_per_s: float
    flops: float
    stream_scale: float
    """Its memory bandwidth over that of the device whose element-wise operations were measured."""
    host_bytes_per_s: float
    peer_bytes_per_s: float
    """0 where the network was measured."""
    nvlink_bytes_per_s: float
    """0 where it was measured."""
    node: NodeLinks
    gemm_tokens: tuple[int, ...]
    reduce_starts: Mapping[int, tuple[float, ...]]
    """Per number of GPUs, the message sizes from which another all-reduce is used: in vLLM a kernel in one shot, one in
    two shots (over more than 2 GPUs), and NCCL."""
    estimated: Mapping[str, str]


GPUS_PER_SWITCH = 2
_KIB, _MIB = 2.0**10, 2.0**20
_LEAST_REDUCED = 256.0
_ESTIMATED = {
    "host_link": "80 % of the bus's rate; not measured",
    "gpus_per_switch": "four PCIe switches for eight GPUs, as in common servers of eight",
    "node": "80 % of two sockets' memory channels, and of a 200 or 400 Gb/s card for storage; not measured",
    "load": "10 s to start and 5 GB/s of weights per GPU; not measured",
    "step_fixed_s": "0: the time between steps belongs to the host, not to the device",
    "head_dim": "attention was measured with heads of 128; others are priced by their bytes and products",
    "prefix": "no table has prefixes; a chunk after a prefix is priced by the mean keys of its queries",
}
A100 = DeviceDatasheet(
    name="a100",
    title="NVIDIA A100 80 GB SXM",
    memory_bytes=80 * 10**9,
    memory_bytes_per_s=2.039e12,
    flops=312e12,
    stream_scale=1.0,
    host_bytes_per_s=25e9,
    peer_bytes_per_s=0.0,
    nvlink_bytes_per_s=0.0,
    node=NodeLinks(memory=330e9, nic=20e9),  # 2 x 8 channels of DDR4-3200
    gemm_tokens=(1, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096, 8192),
    reduce_starts={
        2: (_LEAST_REDUCED, 8 * _MIB),
        4: (_LEAST_REDUCED, 512 * _KIB, 8 * _MIB),
        8: (_LEAST_REDUCED, 256 * _KIB, 8 * _MIB),
    },
    estimated=_ESTIMATED,
)
H200 = DeviceDatasheet(
    name="h200",
    title="NVIDIA H200 141 GB SXM",
    memory_bytes=141 * 10**9,
    memory_bytes_per_s=4.8e12,
    flops=989e12,
    stream_scale=4.8 / 2.039,
    host_bytes_per_s=50e9,
    peer_bytes_per_s=40e9,
    nvlink_bytes_per_s=342e9,
    node=NodeLinks(memory=490e9, nic=40e9),  # 2 x 8 channels of DDR5-4800
    gemm_tokens=(1, 16, 64, 128, 256, 512, 1024, 2048, 8192, 32768),
    reduce_starts={
        2: (_LEAST_REDUCED, 8 * _MIB),
        4: (_LEAST_REDUCED, 512 * _KIB, 8 * _MIB),
        8: (_LEAST_REDUCED, 256 * _KIB),  # no two shots on this architecture
    },
    estimated=_ESTIMATED
    | {
        "streams": "the A100's, scaled by the memory's bandwidth",
        "nvlink": "76 % of 450 GB/s, the part of its rate that an A100's was measured to reach, and its latency",
        "peer_link": "80 % of a 400 Gb/s network; not measured",
    },
)
DEVICES = {facts.name: facts for facts in (A100, H200)}
