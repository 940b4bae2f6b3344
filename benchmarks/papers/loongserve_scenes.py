"""What LoongServe's section 7 compares: systems, workloads and rates, with what the paper prints of them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from dunlin.workload.traffic.arrival_processes import arrivals_until, poisson_arrivals
from dunlin.workload.traffic.trace import Arrival
from dunlin.workload.traffic.workload_spec import parse_lengths, read_workload

DEVICE, SHAPE, MAX_POSITIONS = "a100", "lwm-text-1m-7b", 520_000
LINKS = (("nvlink", 152.2e9),)
"""An A800's: 400 of the A100's 600 GB/s. All-reduces are an A100's, to the advantage of tensor parallelism."""
ZIPF_MOST, ZIPF_DRAWN = 200_000, 2_000


@dataclass(frozen=True, slots=True)
class System:
    """A column: a preset on `instances` of `tp` GPUs each, per node of 8. `is_vllm`: its engine is built on vLLM."""

    name: str
    preset: str
    instances: int
    tp: int
    settings: tuple[tuple[str, Any], ...] = ()
    is_vllm: bool = True


_BUDGET = "instance.scheduler.budget_tokens"
_LONG = "dispatcher.placement.long_tokens"
_WHOLE = ((_BUDGET, 16_384),)
_GROUPS = (("instance.groups.chunk_tokens", 2_048), ("instance.groups.ring", False), (_BUDGET, 2_048))
VLLM = System("vllm", "vllm", 1, 8, _WHOLE)
CHUNKED = System("chunked", "shortest_queue", 1, 8, ((_BUDGET, 2_048),))
DISTSERVE = System("distserve", "distserve", 2, 4, _WHOLE)
REPLICAS = System("replicas", "chunked", 4, 2, ((_BUDGET, 2_048),), is_vllm=False)
_ALL = (("instance.groups.policy", "widest"), ("instance.groups.return_after_s", 1e6), (_LONG, 1))
STATIC = System("static sp", "static_sp", 4, 2, (*_GROUPS, *_ALL), is_vllm=False)
REPLICATED = System("replicated sp", "replicated_sp", 4, 2, (*_GROUPS, *_ALL), is_vllm=False)
LOONGSERVE = System("loongserve", "loongserve", 4, 2, (*_GROUPS, (_LONG, 32_000)), is_vllm=False)
_EVERY = (*_GROUPS, (_LONG, 1), ("instance.groups.max_waiting", 4_096))
PLANNED = System("loongserve", "loongserve", 4, 2, _EVERY, is_vllm=False)
"""Every request is the planner's, as in LoongServe: figure 13 is about short ones."""
NO_SCALE_UP = System("no scale-up", "loongserve_no_scale_up", 4, 2, _EVERY, is_vllm=False)
SYSTEMS = (VLLM, CHUNKED, DISTSERVE, LOONGSERVE)
TUNED = (512, 2_048, 8_192)
"""Budgets that are tried for what has one, with another seed (`--tune`)."""


@dataclass(frozen=True, slots=True)
class Scene:
    """A panel of a figure: the load by rate, and the systems under it.

    `load` names it; `arrivals(rate, seed)` draws it. `rates` rise, in requests per second. `nodes` have each system's
    instances; `value` is what a figure varies. `paper` is what is printed there.
    """

    figure: str
    title: str
    load: str
    arrivals: Callable[[float, int], list[Arrival]]
    rates: Sequence[float]
    systems: Sequence[System] = SYSTEMS
    nodes: int = 1
    value: float = 0.0
    paper: str = ""


FIGURES = ("10", "11", "12", "13")
_FILES = {
    "sharegpt": "sharegpt_loongserve_1000_lengths.csv.gz",
    "leval": "leval_partial_lengths.csv.gz",
    "lveval": "synthetic_lveval_lengths.csv.gz",
}
_LOADS: Mapping[str, tuple[str, float, tuple[float, ...]]] = {
    "sharegpt": ("ShareGPT", 30.0, (30, 60, 90)),
    "leval": ("L-Eval", 60.0, (2, 4, 6, 8)),
    "lveval": ("LV-Eval", 300.0, (0.06, 0.1, 0.14, 0.2, 0.3)),
    "mixed": ("Mixed", 300.0, (0.1, 0.17, 0.25, 0.35, 0.5, 0.7, 1.0)),
}
"""Title, seconds of load and rates. Long enough that a queue which grows shows against 25 times the lone latency."""


def lengths_of(name: str, folder: Path | None) -> str:
    """The lengths of a data set as a workload names them: of a file in `folder`, or drawn from published figures."""
    if name == "mixed":
        return f"mixed({','.join(lengths_of(each, folder) for each in _FILES)})"
    return name if folder is None else str(folder / _FILES[name])


def scenes(folder: Path | None, shorter: float = 1.0) -> Iterator[Scene]:
    """All panels. Loads last 1 / `shorter` of their time."""
    for name, (title, seconds, rates) in _LOADS.items():
        load_name, load = _load_of(name, folder, seconds / shorter)
        paper = "up to 4.64x vllm, 3.85x chunked, 5.81x distserve over all panels; 4.00x, 3.37x, 3.58x of input"
        yield Scene("10", title, load_name, load, rates, paper=paper)
    load_name, load = _load_of("mixed", folder, _LOADS["mixed"][1] / shorter)
    two = (VLLM, CHUNKED, LOONGSERVE)
    paper = "1.86x vllm, 3.37x chunked; 1.72x, 3.11x of input"
    yield Scene("11", "Mixed, 16 GPUs", load_name, load, (0.35, 0.7, 1.0, 1.4), two, nodes=2, paper=paper)
    ablation, mixed = (VLLM, STATIC, REPLICATED, REPLICAS, LOONGSERVE), lengths_of("mixed", folder)
    for theta, goodput in ((1.0, 2.33), (1.2, 1.98), (1.4, 1.53)):
        drawn = partial(_zipf, mixed, theta, 60.0 / shorter)
        paper = f"P90 goodput {goodput}x that of the best of the others"
        load_name = f"zipf-{theta:g} of {mixed}:{60.0 / shorter:g}"
        yield Scene("12", f"Zipf {theta:g}", load_name, drawn, (2, 5, 10, 20, 40), ablation, value=theta, paper=paper)
    title, seconds, _ = _LOADS["sharegpt"]
    load_name, load = _load_of("sharegpt", folder, seconds / shorter)
    paper, systems = "P90 goodput 2.87x that of no scale-up", (NO_SCALE_UP, PLANNED)
    yield Scene("13", title, load_name, load, (10, 25, 40, 60, 80), systems, paper=paper)


def _load_of(name: str, folder: Path | None, seconds: float) -> tuple[str, Callable[[float, int], list[Arrival]]]:
    """A data set's load and what it is called. Drawn lengths are another load than listed ones: kept runs of one must
    not be taken for those of the other.
    """
    lengths = lengths_of(name, folder)
    return f"{lengths}:{seconds:g}", partial(_poisson, lengths, seconds)


def scene_of(lengths: str, seconds: float, rates: Sequence[float]) -> Scene:
    """Figure 10's systems under a load that is none of the paper's: `lengths` as workloads name them."""
    load = partial(_poisson, lengths, seconds)
    return Scene("10", lengths, f"{lengths}:{seconds:g}", load, rates, paper="none of its loads")


def _poisson(lengths: str, seconds: float, rate: float, seed: int) -> list[Arrival]:
    return read_workload(f"poisson:rate={rate:g},duration={seconds:g},lengths={lengths}", seed)


def _zipf(lengths: str, theta: float, seconds: float, rate: float, seed: int) -> list[Arrival]:
    """Lengths of the Mixed set in ascending order, the i-th with a probability that falls as i^-theta."""
    source, drawing = parse_lengths(lengths, lengths), Random(0)
    pairs = sorted(pair for pair in (source.draw(drawing) for _ in range(ZIPF_DRAWN)) if sum(pair) <= ZIPF_MOST)
    weights = [rank**-theta for rank in range(1, len(pairs) + 1)]
    random = Random(f"zipf {seed}")
    times = arrivals_until(poisson_arrivals(rate, seed), seconds)
    drawn = random.choices(pairs, weights, k=len(times))
    return [Arrival(at_s, *pair) for at_s, pair in zip(times, drawn, strict=True)]
