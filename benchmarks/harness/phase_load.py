"""Requests whose texts are known, sung on command: short ones and ones with a long prompt.

Each has the same text every time (a deterministic cluster), so every answer is compared. Knows nothing of faults.
"""

import asyncio
import random
import time
from collections.abc import Sequence
from enum import Enum
from itertools import pairwise

from benchmarks.harness.verified_load import first_difference, record_stream
from dunlin.messages.types import i32
from dunlin.workload.loadgen.load_generator import LoadTarget, RequestFailed, RequestRejected
from dunlin.workload.loadgen.stats import RequestRecord
from dunlin.workload.traffic.prompts import Job


class LoadKind(Enum):
    """By the tokens of the prompt."""

    DECODE = 48
    PREFILL = 1500


PREFILL_OUTPUT_TOKENS = 24


class PhaseLoad:
    """Owns the texts that are known and the verdict on what was sung."""

    def __init__(self, door: LoadTarget, vocabulary: int, width: int, decode_tokens: int, seed: int = 1) -> None:
        draw = random.Random(seed)
        lengths = {LoadKind.DECODE: decode_tokens, LoadKind.PREFILL: PREFILL_OUTPUT_TOKENS}
        self._door = door
        self._jobs = {song: [_job(song, lengths[song], i, vocabulary, draw) for i in range(width)] for song in LoadKind}
        self._known: dict[tuple[LoadKind, int], list[int]] = {}
        self._first_s: dict[LoadKind, float] = {}
        self._start_s = time.monotonic()
        self.open: list[RequestRecord] = []
        self.failures: list[str] = []
        self.finished = 0

    async def record_references(self) -> None:
        """Sing everything once, undisturbed."""
        for song in LoadKind:
            records = await asyncio.gather(*self.begin(song))
            self._first_s[song] = max(record.token_s[0] - record.at_s for record in records if record.token_s)
            for index, record in enumerate(records):
                if record.outcome != "ok":
                    raise RuntimeError(f"the undisturbed run failed: {record.detail}")
                self._known[song, index] = record.tokens
        self.failures.clear()

    def gaps_s(self, song: LoadKind, records: Sequence[RequestRecord], at_s: float) -> list[float]:
        """Of the streams that a fault at `at_s` met; see `gap_s`."""
        gaps = (gap_s(record, at_s, self._first_s[song]) for record in records)
        return [gap for gap in gaps if gap is not None]

    def longest_gap(self, song: LoadKind, records: Sequence[RequestRecord], at_s: float) -> RequestRecord:
        """The one that a fault at `at_s` made wait longest."""
        return max(records, key=lambda record: gap_s(record, at_s, self._first_s[song]) or 0.0)

    def begin(self, song: LoadKind) -> "list[asyncio.Task[RequestRecord]]":
        """Start every singer of `song`; each task ends with its record, compared."""
        return [asyncio.create_task(self._send(song, i)) for i in range(len(self._jobs[song]))]

    def now_s(self) -> float:
        """The clock of the records."""
        return time.monotonic() - self._start_s

    async def _send(self, song: LoadKind, index: int) -> RequestRecord:
        job = self._jobs[song][index]
        record = RequestRecord(self.now_s(), len(job.prompt), job.max_tokens)
        self.open.append(record)
        try:
            await record_stream(self._door, job, record, self.now_s)
            record.outcome, record.detail = "ok", f"{len(record.tokens)} of {job.max_tokens} tokens"
        except (RequestRejected, RequestFailed) as failed:
            record.detail = str(failed)
        record.end_s = self.now_s()
        self.open.remove(record)
        self._compare(song, index, record)
        return record

    def _compare(self, song: LoadKind, index: int, record: RequestRecord) -> None:
        self.finished += 1
        known = self._known.get((song, index))
        if record.outcome != "ok":
            self.failures.append(f"{record.request or 'no request'}: {record.detail}")
        elif known is not None and record.tokens != known:
            self.failures.append(f"{record.request}: {first_difference(record.tokens, known)}")


def gap_s(record: RequestRecord, at_s: float, undisturbed_s: float) -> float | None:
    """What a fault at `at_s` made a stream wait: its longest silence after it, or how much later than in the
    undisturbed run its first token came. None: it had ended.
    """
    if not record.token_s or record.token_s[-1] < at_s:
        return None
    if record.token_s[0] > at_s:
        return max(0.0, record.token_s[0] - record.at_s - undisturbed_s)
    return max(later - earlier for earlier, later in pairwise(record.token_s) if later > at_s)


def _job(song: LoadKind, output_tokens: int, index: int, vocabulary: int, draw: random.Random) -> Job:
    prompt: Sequence[int] = draw.choices(range(vocabulary), k=song.value)
    return Job(0.0, i32(prompt), output_tokens, seed=index if index % 2 else None)
