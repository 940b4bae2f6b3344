"""Settings of batch jobs. The simulator has none."""

from dataclasses import dataclass

from dunlin.config.fields import check, setting


@dataclass(frozen=True, slots=True)
class BatchesConfig:
    """Batch jobs and the files that they read and write."""

    store_url: str = setting(
        "",
        "Where files lie: a folder, or a URL of fsspec such as s3://bucket/batches. The same for all dispatchers. "
        "Empty: `batches` in the data directory.",
        why="one node needs no object store",
    )
    jobs_at_once: int = setting(
        16, "Jobs that one dispatcher works on; others wait, or go to another.", unit="jobs", least=1, why="memory"
    )
    tenant_jobs_at_once: int = setting(
        4,
        "Of them, jobs of one tenant.",
        unit="jobs",
        least=1,
        why="one that has many jobs leaves room for others",
    )
    lines_in_flight: int = setting(
        192,
        "Lines of one job that run, or wait for an instance, at one time.",
        unit="lines",
        least=1,
        why="more than an instance runs and queues: tenants share by weight what waits at the dispatcher",
    )
    uncommitted_lines: int = setting(
        2048,
        "Lines of one job that may have begun and are not committed: so many may run twice after a crash.",
        unit="lines",
        least=1,
        why="one long answer holds up the commit of those behind it",
    )
    uncommitted_bytes: int = setting(
        16 << 20, "Bytes of their results in memory.", unit="bytes", least=1, why="a bound for memory"
    )
    segment_lines: int = setting(
        512, "Lines of one committed part of the results.", unit="lines", least=1, why="200 parts of 100,000 lines"
    )
    commit_interval_s: float = setting(
        5.0,
        "Finished lines are committed after so long, fewer than a whole part too.",
        unit="seconds",
        above=0,
        why="what a crash may cost, against a write to etcd and one to the store",
    )
    lease_ttl_s: int = setting(
        10,
        "A dispatcher that is not heard of for so long loses its jobs to another.",
        unit="seconds",
        least=2,
        why="batch work can wait for a sure sign",
    )
    max_line_attempts: int = setting(
        5,
        "Times that a line is tried which fails by no fault of its own; a full queue or a spent quota costs none.",
        unit="attempts",
        least=1,
        why="each has been tried at several instances already",
    )
    urgent_share: float = setting(
        0.1,
        "In this last share of a job's completion window its lines that wait may rise: they are dispatched like "
        "interactive requests, as many at a time as dispatcher.starvation.risen_share allows. 0: none does.",
        unit="share of the completion window",
        least=0,
        most=1,
        why="two hours of a day",
    )
    max_file_bytes: int = setting(
        256 << 20, "The longest file that is taken.", unit="bytes", least=1, why="200,000 lines of a kilobyte"
    )
    max_lines: int = setting(
        200_000,
        "Lines of one job; a longer file fails.",
        unit="lines",
        least=1,
        why="a hash of each custom_id, about 100 bytes, is in memory while a file is scanned",
    )
    max_line_bytes: int = setting(
        1 << 20, "The longest line; a longer one fails.", unit="bytes", least=1, why="a prompt of 128k tokens"
    )
    max_jobs: int = setting(
        1000,
        "Jobs that are kept, finished ones included; no more are taken.",
        unit="jobs",
        least=1,
        why="a record is about a kilobyte of etcd",
    )
    max_files: int = setting(
        1000, "Uploaded files that are kept; no more are taken.", unit="files", least=1, why="as max_jobs"
    )
    max_window_s: float = setting(
        7 * 86_400.0, "The longest completion window.", unit="seconds", above=0, why="a week of idle nights"
    )
    keep_s: float = setting(
        30 * 86_400.0,
        "A finished job with its results, and a file that no open job reads, are forgotten after so long.",
        unit="seconds",
        above=0,
        why="as long as OpenAI keeps them",
    )

    def __post_init__(self) -> None:
        check(self)
