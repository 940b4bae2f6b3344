"""Times of groups in the twin: `python -m benchmarks.simulation.group_times [--device a100] [--shape lwm-text-1m-7b]
[--tp 1] [--tables FOLDER]`.

Prefills by degree of parallelism, as a ring and by queries, within a node and between nodes, whole and in chunks; what
scaling down and up costs (LoongServe's figure 14, computed by the model); equation 7 at lengths that it was not fitted
to. With the folder of calibration tables also LoongServe's measured iterations, which needs numpy.
"""

import argparse
import statistics
import sys
from dataclasses import replace
from itertools import product
from math import fsum
from pathlib import Path

from cli.common.output import table
from dunlin.cost.engine_timing import EngineTiming
from dunlin.cost.group_steps import GroupWork, PeerWork
from dunlin.cost.group_times import chunk_by_queries_s, chunk_by_ring_s, fit_degrees, prefill_s, prefill_work
from dunlin.cost.models import BatchCounts
from dunlin.cost.timing_loader import load_timing

DEGREES = (1, 2, 4, 8)
LENGTHS = (1_000, 10_000, 100_000, 500_000)
HELD_OUT = (700, 1_500, 3_000, 6_000, 11_000, 23_000, 47_000, 90_000, 180_000, 350_000)
CHUNK, PREFIX = 16_384, 200_000
PROMPTS, PER_MEMBER = (2_048, 8_192, 32_768, 131_072), (512, 2_048)
ROWS = ((1, 1_000), (1, 100_000), (16, 50_000), (64, 10_000), (256, 1_000), (1024, 1_000))


def far(work: GroupWork) -> GroupWork:
    """The same with all peers on other nodes."""
    return replace(work, peers=[replace(peer, is_near=False) for peer in work.peers])


def prefills(timing: EngineTiming) -> str:
    """Seconds of whole prompts as rings, with the speed-up over one instance; far: each instance on its own node."""
    rows = []
    for length in LENGTHS:
        alone_s = prefill_s(timing, 1, [length])
        cells = [f"{length:,}", f"{alone_s:.3f} s"]
        for degree in DEGREES[1:]:
            near_s, far_s = prefill_s(timing, degree, [length]), timing.group_s(far(prefill_work(degree, [length])))
            cells.append(f"{alone_s / near_s:.2f} / {alone_s / far_s:.2f}")
        rows.append(tuple(cells))
    return str(table(("prompt", "alone", *(f"DoP {d}: near / far" for d in DEGREES[1:])), rows))


def chunks(timing: EngineTiming) -> str:
    """A chunk after a long prefix, by queries."""
    rows = []
    for tokens in (2_048, CHUNK):
        batch = BatchCounts()
        batch.add_prefill(tokens, PREFIX)
        alone_s = timing.step_s(batch)
        speed = [
            f"{alone_s / chunk_by_queries_s(timing, d, tokens, PREFIX):.2f} / "
            f"{alone_s / chunk_by_queries_s(timing, d, tokens, PREFIX, is_near=False):.2f}"
            for d in DEGREES[1:]
        ]
        rows.append((f"{tokens:,} after {PREFIX:,}", f"{alone_s:.3f} s", *speed))
    return str(table(("chunk by queries", "alone", *(f"DoP {d}: near / far" for d in DEGREES[1:])), rows))


def ways(timing: EngineTiming) -> str:
    """Prompts in chunks: as rings over by queries. All members answer for pieces of earlier chunks, or only those that
    keep the prompt: half of them, or one. The last column: all answer, each on its own node.
    """
    rows = []
    for length, degree, each in product(PROMPTS, DEGREES[1:], PER_MEMBER):
        chunk = degree * each
        starts = [(start, min(chunk, length - start)) for start in range(0, length, chunk)]
        cells = [f"{length:,}", str(degree), f"{chunk:,}"]
        for answering, is_near in ((degree, True), (degree // 2, True), (1, True), (degree, False)):
            ring_s = fsum(chunk_by_ring_s(timing, degree, n, at, answering, is_near) for at, n in starts)
            queries_s = fsum(chunk_by_queries_s(timing, degree, n, at, is_near) for at, n in starts)
            cells.append(f"{ring_s / queries_s - 1:+.1%}")
        rows.append(tuple(cells))
    header = ("prompt", "DoP", "chunk", "all answer", "half", "one", "all, far")
    return "rings over queries, in time\n" + str(table(header, rows))


def scaling(timing: EngineTiming) -> str:
    """What keeping all KV at half of four members adds to a prefill, and a member more to a decode step."""
    rows = []
    for length in LENGTHS:
        work = prefill_work(4, [length])
        more = timing.group_s(replace(work, kept=length // 2)) / timing.group_s(work) - 1.0
        rows.append((f"4 to 2 after a prefill of {length:,}", f"{more:+.2%}"))
    for count, context in ROWS:
        alone_s = timing.step_s(BatchCounts(decode_rows=count, decode_context=count * context))
        rows.append(
            (f"1 to 2, one master, {count} x {context:,}", f"{_grown_s(timing, count, context, 1) / alone_s - 1:+.1%}")
        )
        rows.append(
            (f"1 to 2, two masters, {count} x {context:,}", f"{_grown_s(timing, count, context, 2) / alone_s - 1:+.1%}")
        )
    return str(table(("scaling", "of the step's time"), rows))


def _grown_s(timing: EngineTiming, rows: int, context: int, masters: int) -> float:
    """A decode step whose KV still lies at the first of two members, the second with one new token of each row."""
    first_rows = rows // masters or 1
    second_rows = rows - first_rows
    first, second = PeerWork(), PeerWork()
    # The first member's rows have a token at the second, and the second's nearly all their keys at the first.
    first.asked.rows, first.asked.context, first.queries_out, first.results_in = (first_rows,) * 4
    first.served.rows, first.served.context = second_rows, second_rows * context
    first.queries_in = first.results_out = second_rows
    own = BatchCounts(decode_rows=first_rows, decode_context=first_rows * context)
    seconds = timing.group_s(GroupWork(own, [first]))
    if second_rows:
        second.asked.rows, second.asked.context = second_rows, second_rows * context
        second.queries_out = second.results_in = second_rows
    second.served.rows, second.served.context = first_rows, first_rows
    second.queries_in = second.results_out = first_rows
    other = BatchCounts(decode_rows=second_rows, decode_context=second_rows)
    return max(seconds, timing.group_s(GroupWork(other, [second])))


def equation_7(timing: EngineTiming) -> str:
    """Errors at lengths between those that were fitted, 1, 3 and 12 prompts at once."""
    rows = []
    for degree, model in fit_degrees(timing, DEGREES).items():
        errors = []
        for length in HELD_OUT:
            for count in (1, 3, 12):
                if count * length <= 1 << 20:
                    batch = BatchCounts()
                    for _ in range(count):
                        batch.add_prefill(length)
                    errors.append(abs(model.step_s(batch) / prefill_s(timing, degree, [length] * count) - 1.0))
        rows.append(
            (
                str(degree),
                str(len(errors)),
                f"{statistics.fmean(errors):.1%}",
                f"{statistics.median(errors):.1%}",
                f"{max(errors):.1%}",
            )
        )
    return str(table(("equation 7, DoP", "points", "mean error", "median", "most"), rows))


def measured(folder: Path) -> str:
    """LoongServe's iterations over several instances, which nothing was fitted to; and decode steps with what the host
    of that engine takes more over 8 GPUs than over one, by the iterations of a single instance of 8 GPUs.
    """
    from cli.profiling.fitting.group_validation import group_errors, host_of_8_gpus_s

    more_s = host_of_8_gpus_s(folder)
    plain, with_host = group_errors(folder), group_errors(folder, more_s)
    rows = [
        (one.part, one.regime, f"{one.mean:.1%}", f"{other.mean:.1%}" if one.part.startswith("decode") else "")
        for one, other in zip(plain, with_host, strict=True)
    ]
    header = ("measured by LoongServe", "batch x length", "off by", f"with {more_s * 1e3:.1f} ms of the host")
    return str(table(header, rows))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="a100")
    parser.add_argument("--shape", default="lwm-text-1m-7b")
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--tables", type=Path, help="the folder of calibration tables")
    options = parser.parse_args()
    timing = load_timing(options.device, options.shape, options.tp)
    print(f"{options.shape} on {options.device}, instances of {options.tp}; speed-ups over one instance\n")
    for part in (prefills, chunks, ways, scaling, equation_7):
        print(part(timing), "\n")
    if options.tables:
        print(measured(options.tables))
    return 0


if __name__ == "__main__":
    sys.exit(main())
