"""A live run's arrivals again, in virtual time, and how far its figures are from the live ones.

Takes the record of a run and a timing; knows neither the command line nor where the timing came from.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from dunlin.cost.models import EngineTiming
from dunlin.policies.presets import DEFAULT_PRESET
from dunlin.workload.prompts import make_jobs
from dunlin.workload.runs import Run
from dunlin.workload.stats import Record, Report, report
from simulator.cluster.network import NetworkSpec
from simulator.cluster.spec import ClusterSpec
from simulator.engine.model import SimulatedEngineSettings, engine_ready_of
from simulator.engine.timing import UnsteadyTiming
from simulator.study.run import SimSpec, simulate

MEASURES = ("ttft_s", "tpot_s")
QUANTILES = ("p50", "p99")
ENGINE_HOP_S = 5e-5
"""Through the socket between instance and engine, where what both compute for it is counted by itself."""


class RunError(ValueError):
    """A record lacks what is needed to run it again; the message says what."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One figure, live and simulated; seconds. `relative` is simulated over live, less 1."""

    measure: str
    quantile: str
    live_s: float
    simulated_s: float

    @property
    def relative(self) -> float:
        """0 where both agree."""
        return self.simulated_s / self.live_s - 1.0 if self.live_s else 0.0


def resimulate(run: Run, timing: EngineTiming, start: float = 0.0) -> list[Record]:
    """The run's requests at their times, on as many instances under the same preset.

    The unsteadiness of its steps begins at `start` (0 to 1).

    Raises:
        RunError: the record does not say what cluster it was.
        ContractBroken: see `simulate`.
    """
    info, asked = run.facts.get("info"), run.facts.get("asked")
    if not isinstance(info, dict) or not isinstance(asked, dict):
        raise RunError("the record does not say what cluster and workload it was: record it with `dunlin replay`")
    launched = run.facts.get("launched") or {}
    ready = engine_ready_of(
        timing,
        max_positions=int(info["max_positions"]),
        vocabulary=int(info["vocabulary"]),
    )
    host = timing.host
    slowness = 1.0 / (1.0 - host.instance.idle_share) if host is not None and host.shares_core else 1.0
    cluster = ClusterSpec(
        instances=int(launched.get("instances", 1)),
        preset=str(launched.get("preset") or DEFAULT_PRESET),
        engine=SimulatedEngineSettings(
            ready=ready, timing=UnsteadyTiming(timing, slowness, start), progress_s=0.25, audit=False
        ),
        network=NetworkSpec() if host is None else NetworkSpec(ENGINE_HOP_S, host.hop_s, host.hop_s),
        host=host,
    )
    arrivals = list(run.arrivals)
    jobs = make_jobs(arrivals, ready.max_positions, ready.vocabulary, int(asked["seed"]), float(asked["speed"]))
    return simulate(SimSpec(cluster, jobs, sample_s=0.0)).records


def differences(live: Sequence[Record], simulated: Sequence[Record]) -> list[Difference]:
    """Of times to the first token and per further token: median and tail."""
    ours, theirs = report(simulated), report(live)
    return [_difference(theirs, ours, measure, quantile) for measure in MEASURES for quantile in QUANTILES]


def _difference(live: Report, simulated: Report, measure: str, quantile: str) -> Difference:
    values = (getattr(getattr(each, measure), quantile) for each in (live, simulated))
    return Difference(measure.removesuffix("_s"), quantile, *values)
