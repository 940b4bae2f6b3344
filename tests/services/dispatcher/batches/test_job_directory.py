"""Which job is begun next: tenants in turn, each tenant's oldest first, and no more of one than it may."""

from dunlin.membership.values import KeyValue
from dunlin.membership.watch import DeletedEvent, PutEvent, ResetEvent
from services.dispatcher.batches.job_directory import JobDirectory
from services.dispatcher.batches.job_store import CLAIM, JOBS, RECORD
from services.dispatcher.batches.record_codec import encode_record
from services.dispatcher.batches.records import JobRecord


def record(job: str, tenant: str, created_s: float = 0.0) -> KeyValue:
    made = JobRecord(job, tenant, "/v1/completions", "file-1", created_s, 60.0)
    return KeyValue(f"{JOBS}{job}/{RECORD}", encode_record(made), 1, 1)


def begun(directory: JobDirectory, most: int, of_tenant: int) -> list[str]:
    """The jobs that a dispatcher begins one after the other."""
    working_on: list[str] = []
    while len(working_on) < most and (job := directory.next_unclaimed(working_on, of_tenant)) is not None:
        working_on.append(job)
    return working_on


def test_tenants_take_turns_and_none_has_more_than_it_may() -> None:
    directory = JobDirectory()
    jobs = [record(f"a{number}", "a", number) for number in range(9)]
    directory.apply(ResetEvent(1, (*jobs, record("b0", "b", 20.0), record("b1", "b", 21.0))))
    assert begun(directory, 4, 4) == ["a0", "b0", "a1", "b1"]
    assert begun(directory, 16, 4) == ["a0", "b0", "a1", "b1", "a2", "a3"]
    assert begun(directory, 2, 1) == ["a0", "b0"]


def test_a_claimed_job_is_passed_over_until_its_claim_is_gone() -> None:
    directory = JobDirectory()
    for number in range(2):
        directory.apply(PutEvent(record(f"a{number}", "a", number)))
    claim = KeyValue(f"{JOBS}a0/{CLAIM}", b"", 1, 1)
    directory.apply(PutEvent(claim))
    assert begun(directory, 9, 9) == ["a1"]
    directory.apply(DeletedEvent(claim.key, 1))
    assert begun(directory, 9, 9) == ["a0", "a1"]


def test_jobs_that_have_ended_take_no_turn() -> None:
    directory = JobDirectory()
    directory.apply(PutEvent(record("a0", "a")))
    directory.apply(PutEvent(record("a1", "a")))
    directory.apply(DeletedEvent(f"{JOBS}a0/{RECORD}", 1))
    assert directory.next_unclaimed(["a0"], 1) == "a1"
