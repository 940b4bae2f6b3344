"""A campaign's view of a running cluster: its doors, its status, the recorded decisions about a request."""

from contextlib import AsyncExitStack, suppress
from types import TracebackType

import dunlin
from benchmarks.harness.decisions import (
    DispatchedAttempt,
    RowCommands,
    dispatched_attempts,
    resumed_at,
    row_commands,
)
from cli.commands.requests.explain import decode_records
from cli.launch.cluster_process import ClusterProcess
from cli.launch.cluster_state import read_state
from dunlin.client import DunlinError
from dunlin.messages.fleet import DispatcherReport, FleetStatus, Reason
from dunlin.telemetry.explain import explain
from dunlin.wire.codec import decode
from dunlin.workload.loadgen.http_client import HttpTarget
from dunlin.workload.loadgen.targets import SdkTarget


class CampaignSession:
    """`async with Session(cluster) as session`. Owns one SDK client and one HTTP client."""

    def __init__(self, cluster: ClusterProcess) -> None:
        self._cluster = cluster
        state = read_state(cluster.data_dir)
        self.client = dunlin.AsyncClient(cluster.grpc, tls_dir=(state.tls_dir or None) if state is not None else None)
        self.door = SdkTarget(self.client)
        self.http_door: HttpTarget
        self._open = AsyncExitStack()
        self.vocabulary = 0
        self.max_positions = 0

    async def __aenter__(self) -> "CampaignSession":
        info = await self.client.info()
        self.vocabulary, self.max_positions = info.vocabulary, info.max_positions
        self.http_door = await self._open.enter_async_context(HttpTarget(self._cluster.http, info.model))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._open.aclose()
        await self.client.close()

    async def status(self) -> FleetStatus:
        """The fleet now."""
        return await self.client.status()

    async def dispatcher(self) -> DispatcherReport:
        """What the dispatcher says of itself."""
        found = [member.dispatcher for member in (await self.status()).members if member.dispatcher is not None]
        return found[0]

    async def dispatched_attempts(self, request: str) -> list[DispatchedAttempt]:
        """The attempts of a request so far, as far as the monitor has heard."""
        return dispatched_attempts(await self._records(request))

    async def resumed_at(self, request: str, since_s: float) -> DispatchedAttempt | None:
        """Whether, after `since_s` on the wall clock, it went on in the next engine of the same instance."""
        return resumed_at(await self._records(request), since_s)

    async def row_commands(self, request: str) -> RowCommands:
        """How often its rows were interrupted and resumed, as far as the monitor has heard and remembers."""
        return row_commands(await self._records(request))

    async def story(self, request: str) -> str:
        """The decisions about a request, a sentence in each line, as far as the monitor has heard and answers."""
        with suppress(DunlinError):
            told = explain(decode_records(await self.client.explain(request)), request)
            return "\n".join(f"     | {line}" for line in told)
        return ""

    async def _records(self, request: str) -> list[tuple[Reason, object]]:
        reasons = (await self.client.explain(request)).reasons
        return [(reason, decode(reason.kind, reason.payload)) for reason in reasons]
