"""Both doors with batch jobs, over a store in a folder and an etcd in memory, which several dispatchers may share."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openai
from aiohttp import web

from dunlin.messages.declare import Method
from dunlin.wire.rpc.methods import Answer
from services.dispatcher.doors.authentication import Authenticator
from services.dispatcher.doors.batches.config import BatchesConfig
from services.dispatcher.doors.batches.jobs import BatchJobs
from services.dispatcher.doors.batches.line_answers import LineAnswerer
from services.dispatcher.doors.gateway import RequestGateway
from services.dispatcher.doors.grpc_batches import GrpcBatches
from services.dispatcher.doors.grpc_server import GrpcDoor
from services.dispatcher.doors.http.batches import BatchRoutes
from services.dispatcher.doors.http.config import HttpConfig
from tests.fakes.memory_etcd import MemoryEtcd, MemoryJobStore
from tests.services.dispatcher.running_doors import Doors, doors


@dataclass
class RunningBatches:
    """What a test may touch."""

    doors: Doors
    jobs: BatchJobs
    etcd: MemoryEtcd
    clients: dict[str, openai.AsyncOpenAI] = field(default_factory=dict)

    def client(self, api_key: str = "none") -> openai.AsyncOpenAI:
        if api_key not in self.clients:
            self.clients[api_key] = self.doors.client(api_key)
        return self.clients[api_key]


@asynccontextmanager
async def running_batches(
    folder: Path, etcd: MemoryEtcd | None = None, name: str = "dispatcher-0", runs: bool = True, **given: Any
) -> AsyncIterator[RunningBatches]:
    """Open both doors; `runs` False: jobs are taken and not worked on. `batches` has settings."""
    etcd = etcd or MemoryEtcd()
    config = BatchesConfig(**{"commit_interval_s": 0.05, **given.pop("batches", {})})
    made: list[BatchJobs] = []

    def more(
        gateway: RequestGateway, authenticator: Authenticator, door: GrpcDoor
    ) -> tuple[list[web.RouteDef], dict[Method[Any, Any], Answer]]:
        answerer = LineAnswerer(gateway, config.max_line_attempts, gateway.clock)
        jobs = BatchJobs(name, MemoryJobStore(etcd), str(folder), answerer, config, gateway.clock)
        made.append(jobs)
        routes = BatchRoutes(jobs.service, authenticator, HttpConfig()).routes()
        return routes, GrpcBatches(jobs.service, door).answers()

    async with doors(more=more, **given) as door:
        jobs = made[0]
        if runs:
            jobs.start()
        at = RunningBatches(door, jobs, etcd)
        try:
            yield at
        finally:
            await jobs.stop()
    jobs.close()
