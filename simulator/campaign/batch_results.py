"""A batch job as etcd and the store of objects have it: its record, its claim, and the committed results.

A commit counts under the claim that stands alone, and as a whole, as the transaction of `JobStore.commit` does.
"""

import json
from dataclasses import dataclass, field

from dunlin.effects import Address
from services.dispatcher.batches.line_window import Segment
from services.dispatcher.batches.records import JobRecord, JobStatus
from simulator.campaign.plans import PlannedJob


@dataclass(eq=False)
class CampaignJob:
    """`holder` works on the job under its claim, the `fence`th; None: no dispatcher does. `alive_s` is when the holder
    kept its lease last, `output` and `errors` are the committed result lines.
    """

    planned: PlannedJob
    record: JobRecord
    holder: Address | None = None
    fence: int = 0
    alive_s: float = 0.0
    output: list[bytes] = field(default_factory=list)
    errors: list[bytes] = field(default_factory=list)

    @property
    def input_lines(self) -> list[bytes]:
        """Its input file, as far as its results are checked against it."""
        return [json.dumps({"custom_id": custom_id(line.number)}).encode() for line in self.planned.lines]

    def commit(self, fence: int, segment: Segment, now_s: float) -> bool:
        """Add a segment to the results and move the cursor behind it; False: that claim does not stand any more."""
        if self.holder is None or fence != self.fence:
            return False
        self.record = segment.advance(self.record)
        self.output += segment.output.splitlines(keepends=True)
        self.errors += segment.errors.splitlines(keepends=True)
        if self.record.lines_read == self.record.total:
            self.record = self.record.ended(JobStatus.COMPLETED, now_s)
            self.holder = None
        return True


def custom_id(number: int) -> str:
    """That of the line whose request has this number."""
    return f"line {number}"
