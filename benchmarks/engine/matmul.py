"""The engine's matrix product against torch's own, fp32: `python -m benchmarks.engine.matmul [--threads N] [--json]`.

The two in turn, in one process, on the shapes of the built-in model; microseconds, the least of several repeats.
"""

import argparse
import json
import timeit
from collections.abc import Callable

import torch
from torch.nn import functional as F

from dunlin.engine.decoder.numerics import linear

SHAPES = ((256, 512), (256, 1408), (704, 256), (256, 4096))
"""(inputs, outputs): queries, keys and values; gate and up; down; the head."""
ROWS = (1, 4, 5, 16, 64, 512)


def least_us(call: Callable[[], object], repeats: int = 7, number: int = 50) -> float:
    call()
    return min(timeit.repeat(call, number=number, repeat=repeats)) / number * 1e6


def compare(inputs: int, outputs: int, rows: int) -> dict[str, float]:
    weight, batch = torch.randn(outputs, inputs), torch.randn(rows, inputs)
    ours = least_us(lambda: linear(batch, weight, None))
    theirs = least_us(lambda: F.linear(batch, weight))
    figures = {"inputs": inputs, "outputs": outputs, "rows": rows, "engine_us": ours, "torch_us": theirs}
    return {**figures, "ratio": theirs / ours}


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    found = [compare(inputs, outputs, rows) for inputs, outputs in SHAPES for rows in ROWS]
    if options.json:
        print(json.dumps(found))
        return
    print(f"{'inputs':>7}{'outputs':>8}{'rows':>6}{'engine us':>11}{'torch us':>10}{'ratio':>7}")
    for one in found:
        print(
            f"{one['inputs']:7.0f}{one['outputs']:8.0f}{one['rows']:6.0f}"
            f"{one['engine_us']:11.1f}{one['torch_us']:10.1f}{one['ratio']:7.2f}"
        )


if __name__ == "__main__":
    main()
