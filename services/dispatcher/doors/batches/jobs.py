"""The batch jobs of one dispatcher: its stores, what its doors offer of them, and the jobs that it works on."""

import asyncio
from collections.abc import Callable

from dunlin.wire.errors import StartError
from services.dispatcher.batches.content_store import ContentStore
from services.dispatcher.batches.job_store import JobStore
from services.dispatcher.doors.batches.config import BatchesConfig
from services.dispatcher.doors.batches.line_answers import LineAnswerer
from services.dispatcher.doors.batches.runner import BatchRunner
from services.dispatcher.doors.batches.service import BatchService


class BatchJobs:
    """Owns the content store. `name` names this dispatcher in its claims.

    Raises:
        StartError: `store_url` cannot be used.
    """

    def __init__(
        self,
        name: str,
        jobs: JobStore,
        store_url: str,
        answerer: LineAnswerer,
        config: BatchesConfig,
        clock: Callable[[], float],
    ) -> None:
        try:
            self._contents = ContentStore(store_url)
        except (ValueError, ImportError) as error:
            raise StartError(f"dispatcher.batches.store_url {store_url!r} cannot be used: {error}") from error
        self.service = BatchService(jobs, self._contents, config, clock)
        self.runner = BatchRunner(name, jobs, self._contents, answerer, config, clock)

    def start(self) -> list[asyncio.Task[None]]:
        """Begin to work on jobs; the tasks, which never end by themselves."""
        return self.runner.start()

    async def stop(self) -> None:
        """Give the jobs back. The doors may go on with files."""
        await self.runner.stop()

    def close(self) -> None:
        """The doors are closed, too: nobody reads or writes files any more."""
        self._contents.close()
