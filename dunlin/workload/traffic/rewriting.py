"""Traces rewritten as papers did (PecSched, ConServe), and questions that share documents (L-Eval)."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from dunlin.workload.traffic.lengths import Pair
from dunlin.workload.traffic.trace import Arrival, TraceError, open_trace

DOCUMENT_TOKENS = 64
"""Tokens of one block of a shared document."""


def lengthen_longest(arrivals: Sequence[Arrival], share: float, low: int, high: int, seed: int) -> list[Arrival]:
    """Give the `share` with the most input tokens uniform ones in `low`…`high`, and all a class, `long` or `short`.

    PecSched 6 with 0.05, 100,000 and 500,000. Of equal ones the first are long. A long one has no prefix any more.
    """
    by_length = sorted(range(len(arrivals)), key=lambda place: (-arrivals[place].input_tokens, place))
    chosen = set(by_length[: round(share * len(arrivals))])
    random = Random(f"long {seed}")
    return [
        replace(one, input_tokens=random.randint(low, high), label="long", blocks=())
        if place in chosen
        else replace(one, label="short")
        for place, one in enumerate(arrivals)
    ]


def sample_over(arrivals: Sequence[Arrival], rate: float, duration_s: float, seed: int) -> list[Arrival]:
    """`rate` x `duration_s` requests of the whole trace, without repeats, their times scaled to 0…`duration_s`.

    ConServe 6.2. Raises TraceError: the trace has fewer.
    """
    count = round(rate * duration_s)
    if not 0 < count <= len(arrivals):
        raise TraceError(f"a sample of {rate:g}/s over {duration_s:g} s needs {count} requests of {len(arrivals)}")
    places = sorted(Random(f"sample {seed}").sample(range(len(arrivals)), count))
    factor = duration_s / (arrivals[-1].at_s or 1.0)
    # The last request may arrive at the end itself, which would be past it.
    last_s = duration_s * (1.0 - 1e-9)
    return [replace(arrivals[place], at_s=min(last_s, arrivals[place].at_s * factor)) for place in places]


@dataclass(frozen=True, slots=True)
class DocumentQuestion:
    """A question about a document: its lengths, and how many of its input tokens all questions about it share."""

    pair: Pair
    document: int
    shared_tokens: int

    def arrival(self, at_s: float) -> Arrival:
        """The question, asked at `at_s`."""
        blocks = self.shared_tokens // DOCUMENT_TOKENS
        names = tuple(self.document << 20 | block for block in range(blocks))
        return Arrival(at_s, *self.pair, blocks=names, block_tokens=DOCUMENT_TOKENS)


def read_documents(path: Path) -> list[DocumentQuestion]:
    """Questions about shared documents: CSV with input_tokens, output_tokens, task and document (L-Eval's counts).

    What the questions about one document have in common is not said: it is taken to be all of the shortest but 128
    tokens. Raises TraceError for what cannot be read.
    """
    with open_trace(path) as lines:
        rows = list(csv.DictReader(lines))
    try:
        read = [((row["task"], row["document"]), int(row["input_tokens"]), int(row["output_tokens"])) for row in rows]
    except (KeyError, TypeError, ValueError) as error:
        raise TraceError(f"{path}: questions need input_tokens, output_tokens, task, document ({error!r})") from None
    if not read or min(min(inputs, outputs) for _, inputs, outputs in read) < 1:
        raise TraceError(f"{path}: holds no question, or one without a token")
    shortest: dict[tuple[str, str], int] = {}
    counts: dict[tuple[str, str], int] = {}
    for key, inputs, _ in read:
        shortest[key] = min(inputs, shortest.get(key, inputs))
        counts[key] = counts.get(key, 0) + 1
    numbers = {key: number for number, key in enumerate(shortest)}
    return [
        DocumentQuestion((inputs, outputs), numbers[key], max(0, shortest[key] - 128) if counts[key] > 1 else 0)
        for key, inputs, outputs in read
    ]
