"""Queries of tools: about a request, and about the fleet; also the source of the page of metrics."""

from typing import Any

import grpc
import grpc.aio

from dunlin.messages.fleet import ExplainQuery, Explanation, FleetStatus, StatusQuery
from dunlin.runtime.core_host import CoreHost
from dunlin.wire.rpc.core_query import CoreQueries

Context = grpc.aio.ServicerContext[Any, Any]


class QueryServicer:
    """Sends queries of tools to the core, and returns its answers."""

    def __init__(self, host: CoreHost) -> None:
        self._asking = CoreQueries(host)

    async def explain(self, query: ExplainQuery, context: Context) -> Explanation:
        """The recorded messages about a request."""
        return await self._asking.ask(query, Explanation)

    async def status(self, query: StatusQuery, context: Context) -> FleetStatus:
        """The fleet now."""
        return await self._asking.ask(query, FleetStatus)

    async def fleet_status(self) -> FleetStatus:
        """The fleet now, for this process itself."""
        return await self._asking.ask(StatusQuery(), FleetStatus)
