"""I10: each line of a batch job has exactly one whole result line, whatever dies, sleeps or loses its claim."""

from services.dispatcher.batches.results_check import broken_results
from simulator.campaign.batch_results import CampaignJob
from simulator.campaign.invariants.watcher import InvariantWatcher


class BatchResultsWatcher(InvariantWatcher):
    """I10: what is committed of a job is the results of the first lines of its input, each once, and its record says
    the same; in the end it is all of them.
    """

    invariant = "I10"

    def audit(self) -> None:
        for job in self.clients.jobs:
            self._check(job, job.record.lines_read)

    def at_end(self) -> None:
        for job in self.clients.jobs:
            self._check(job, len(job.planned.lines))

    def _check(self, job: CampaignJob, lines: int) -> None:
        complaints = broken_results(job.input_lines[:lines], job.output, job.errors)
        record = job.record
        if (record.completed, record.failed) != (len(job.output), len(job.errors)):
            complaints.append(f"its record says {record.completed} answered and {record.failed} failed")
        if complaints:
            raise self.fail(f"{record.id}, at line {record.lines_read} of {record.total}: {'; '.join(complaints)}")
