"""ConServe 6.4.2 in the twin: how soon the modelled engine of a setup answers an interrupt within a step of batch work.

A safepoint costs nothing in the model: what it costs is measured of the live engine (`benchmarks.engine.interrupts`).
"""

from random import Random

from benchmarks.papers.conserve_scenes import Setup
from benchmarks.simulation.engine_times import ModelledEngine
from dunlin.cost.engine_overheads import find_overhead
from dunlin.cost.engine_timing import EngineTiming
from dunlin.cost.models import BatchCounts
from dunlin.cost.timing_loader import load_timing
from dunlin.workload.loadgen.stats import percentiles

STEP_TOKENS = (512, 1024, 2048, 4096)
"""Prompt tokens of the step; the scheduler's default fills steps of batch work alone up to 2,048."""
INTERRUPTS = 1000
"""Of each, at random moments of the step."""
LAYERS_BOUND, LEAST_BOUND_S = 1.2, 0.005


def show_responses(setup: Setup) -> None:
    """Print the responses beside the bound of the larger of 1.2 layers and 5 ms, and beside the paper's."""
    timing = load_timing(setup.device, setup.model, 1, find_overhead("dunlin").overhead)
    print("\n6.4.2: response to an interrupt of a step of batch work, ms; paper: 5.41 of 98.5, at 8 layers a safepoint")
    print(f"{'tokens':>8}{'step':>8}{'layer':>8}{'p50':>8}{'p99':>8}{'max':>8}{'bound':>8}")
    for tokens in STEP_TOKENS:
        step_s = timing.step_s(_prompt(tokens))
        layer_s = step_s / timing.layers
        found = percentiles(responses_s(timing, setup, tokens, step_s))
        bound_s = max(LAYERS_BOUND * layer_s, LEAST_BOUND_S)
        times = (step_s, layer_s, found.p50, found.p99, found.max, bound_s)
        print(f"{tokens:8}" + "".join(f"{1e3 * each:8.2f}" for each in times))


def responses_s(timing: EngineTiming, setup: Setup, tokens: int, step_s: float, count: int = INTERRUPTS) -> list[float]:
    """Of interrupts at random moments, those that came before the last safepoint."""
    draw = Random(tokens)
    engines = (ModelledEngine(timing, 1.0, tokens + 16, tokens + 16) for _ in range(count))
    found = (engine.interrupt_time(tokens, step_s * draw.random()) for engine in engines)
    return [each for each in found if each is not None]


def _prompt(tokens: int) -> BatchCounts:
    batch = BatchCounts()
    batch.add_prefill(tokens, 0)
    return batch
