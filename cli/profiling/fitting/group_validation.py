"""Steps of groups as composed, against LoongServe's measured sequence parallelism. Needs numpy and the tables."""

from pathlib import Path

import numpy as np

from cli.profiling.fitting.fitted_parts import FitError, fit_error
from cli.profiling.fitting.tables import ITERATIONS, read_table
from cli.profiling.fitting.validation import SHAPE, fit_overhead, read_iterations
from dunlin.cost.group_steps import GroupWork, PeerWork
from dunlin.cost.group_times import prefill_work
from dunlin.cost.models import BatchCounts
from dunlin.cost.timing_loader import load_timing

A800_NVLINK = 2 / 3
"""Of an A100's bandwidth: 400 GB/s and not 600."""
_MEASURED = "measured_loongserve_a800.csv.gz"


def decode_work(members: int, masters: int, rows: int, context: int) -> GroupWork:
    """The busiest master's part of a decode step: its share of the rows, each with its KV spread evenly over all."""
    own_rows, here = -(-rows // masters), -(-context // members)
    peers = []
    for number in range(members - 1):
        peer = PeerWork(queries_out=own_rows, results_in=own_rows)
        peer.asked.rows, peer.asked.context = own_rows, own_rows * here
        if number < masters - 1:
            peer.served.rows, peer.served.context = own_rows, own_rows * here
            peer.queries_in = peer.results_out = own_rows
        peers.append(peer)
    return GroupWork(BatchCounts(decode_rows=own_rows, decode_context=own_rows * here), peers)


def group_errors(folder: Path, more_step_s: float = 0.0) -> list[FitError]:
    """Every measured iteration over more than one instance against composed A100 steps with the overhead that was
    fitted on one GPU, and `more_step_s` besides. None of them was fitted to.
    """
    table = read_table(folder / _MEASURED, ITERATIONS)
    rows = table.where(table.numbers["sp"] > 1).numbers
    overhead = fit_overhead(read_iterations(folder))
    errors = []
    for i in range(len(rows["sp"])):
        sp, tp, batch, length = (int(rows[name][i]) for name in ("sp", "tp", "batch", "input_len"))
        timing = load_timing("a100", SHAPE, tp, overhead)
        links = {"nvlink": A800_NVLINK * timing.links.nvlink / tp}
        timing = load_timing("a100", SHAPE, tp, overhead, links)
        prefill_s = timing.group_s(prefill_work(sp, [length] * batch))
        decode_s = timing.group_s(decode_work(sp, int(rows["num_sp_masters"][i]), batch, length + 1))
        for part, seconds, measured in (
            ("prefill", prefill_s, rows["prefill_latency"][i]),
            ("decode", decode_s + more_step_s, rows["decode_latency"][i]),
        ):
            name = f"{part} sp{sp}-tp{tp}"
            errors.append(fit_error(name, f"{batch} x {length:,}", np.array([seconds]), np.array([measured])))
    return sorted(errors, key=lambda error: error.part)


def host_of_8_gpus_s(folder: Path) -> float:
    """What a decode step over 8 GPUs takes more than its kernels and one GPU's overhead: the median of one instance."""
    table = read_table(folder / _MEASURED, ITERATIONS)
    rows = table.where((table.numbers["sp"] == 1) & (table.numbers["tp"] == 8)).numbers
    timing = load_timing("a100", SHAPE, 8, fit_overhead(read_iterations(folder)))
    rest = [
        measured - timing.step_s(BatchCounts(decode_rows=int(batch), decode_context=int(batch * (length + 1))))
        for batch, length, measured in zip(rows["batch"], rows["input_len"], rows["decode_latency"], strict=True)
    ]
    return float(np.median(rest))
