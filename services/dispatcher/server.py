"""The dispatcher's process: runs the core in a service and the public doors in front of it. Takes no decision."""

import asyncio
import gc
import logging
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from dunlin.auth.tenants import Tenant
from dunlin.effects import Address
from dunlin.messages.batches import BATCHES_SERVICE
from dunlin.messages.door import Quotas
from dunlin.model.builtin import models_folder
from dunlin.model.errors import ModelError
from dunlin.runtime.core_host import CoreHost
from dunlin.wire.envelopes import DISPATCH, PLACEMENT
from dunlin.wire.errors import StartError
from dunlin.wire.rpc.methods import DISPATCHER_SERVICE, Methods
from dunlin.wire.service.options import ServiceOptions
from dunlin.wire.service.service import ServiceProcess
from services.dispatcher.admission.objectives import objectives_error
from services.dispatcher.admission.quotas import QuotaUsage
from services.dispatcher.batches.job_store import JobStore
from services.dispatcher.core import DispatcherCore
from services.dispatcher.doors.access_log import AccessLog
from services.dispatcher.doors.authentication import Authenticator
from services.dispatcher.doors.batches.jobs import BatchJobs
from services.dispatcher.doors.batches.line_answers import LineAnswerer
from services.dispatcher.doors.gateway import RequestGateway
from services.dispatcher.doors.generation.served_model import ServedModel, load_served_model
from services.dispatcher.doors.grpc_batches import GrpcBatches
from services.dispatcher.doors.grpc_server import DOOR_NAME as GRPC
from services.dispatcher.doors.grpc_server import GrpcDoor
from services.dispatcher.doors.http.app import HttpConfig, HttpDoor, bind
from services.dispatcher.doors.http.batches import BatchRoutes
from services.dispatcher.doors.http.call_middleware import DOOR_NAME as HTTP
from services.dispatcher.doors.http.open_files import raise_open_file_limit
from services.dispatcher.doors.metrics import AccessLogCollector, DoorMetrics, TenantWeightCollector
from services.dispatcher.doors.tenants_file import TenantsFile
from services.dispatcher.process_config import DispatcherProcessConfig

_log = logging.getLogger(__name__)

MAX_MESSAGE_BYTES = 16 << 20
"""Twice the longest request that is accepted: a request between the two gets an answer that says what is wrong, while
gRPC refuses a longer one without reading it."""


@dataclass(frozen=True, slots=True)
class DoorOptions:
    """The model to serve (`model_name`: its name for clients), directories of LoRA `adapters` by name, and where HTTP
    listens (port 0: any free one).
    """

    model: str
    http_host: str
    http_port: int
    model_name: str = ""
    adapters: Mapping[str, str] = field(default_factory=dict)


class Dispatcher:
    """One dispatcher process. `core`, `gateway` and `http` exist once `start` has returned."""

    core: DispatcherCore
    gateway: RequestGateway
    http: HttpDoor
    _batches: BatchJobs

    def __init__(self, options: ServiceOptions, doors: DoorOptions, config: DispatcherProcessConfig) -> None:
        keys = config.tenants.keys_file
        self.service = ServiceProcess(options)
        self.authenticator = Authenticator()
        self.http_port = 0
        self._keys = TenantsFile(Path(keys), self._set_tenants, self._tenant_error) if keys else None
        self._quotas: Quotas | None = None
        self._host: CoreHost | None = None
        self._follow_tenants: asyncio.Task[None] | None = None
        self._log: AccessLog | None = None
        self._doors = doors
        self._config = config

    async def start(self) -> None:
        """Read the tenants, load the tokenizer, bind the ports, register with etcd, open the doors.

        Raises:
            StartError: a file, the model, a port or the registration is at fault; the text says what to do.
        """
        if self._keys is not None:
            self._keys.load()
        if self._config.access_log.path:
            self._log = AccessLog(self._config.access_log)
        model = await _load(self._doors, self.service.options.data_dir)
        self._config = replace(self._config, max_positions=model.max_positions)
        listening = bind(self._doors.http_host, self._doors.http_port)
        self.http_port = listening.getsockname()[1]
        await self.service.start(
            self._make_core,
            dials={"instance": DISPATCH, "global_manager": PLACEMENT},
            make_handlers=lambda host: [self._make_doors(host, model)],
            services=[DISPATCHER_SERVICE, BATCHES_SERVICE],
            extra={"http": f"{self._doors.http_host}:{self.http_port}"},
            # One port authenticates clients in one way: by their keys where keys are required, else by certificates.
            demands_certificate=self._keys is None,
            most_message_bytes=MAX_MESSAGE_BYTES,
        )
        await self._open_http(listening)
        for task in self._batches.start():
            task.add_done_callback(self.service.host.crash_on_error)
        if self._keys is not None:
            self._follow_tenants = asyncio.create_task(self._keys.follow(), name="the file of tenants")
            self._follow_tenants.add_done_callback(self.service.host.crash_on_error)

    async def run(self) -> int:
        """Serve until a signal stops it; the exit code."""
        await self.start()
        # What was loaded lives as long as the process. Each full collection scanned it, which took 40 ms of the event
        # loop.
        gc.collect()
        gc.freeze()
        await self.service.wait_for_stop()
        if self._follow_tenants is not None:
            self._follow_tenants.cancel()
        await self._batches.stop()  # before its lines are cut off: another dispatcher runs them again
        self.gateway.shut_down(GRPC)
        await self.http.stop()
        exit_code = await self.service.run_until_stopped()
        self._batches.close()
        if self._log is not None:
            self._log.close()
        return exit_code

    async def _open_http(self, listening: socket.socket) -> None:
        security = self.service.security
        # Browsers and OpenAI's clients have no certificates: only the server has to prove its identity.
        tls = partial(security.server_context, demands_certificate=False) if security is not None else None
        if security is not None and self._keys is None:
            _log.warning("the HTTP door serves every client that reaches it: require API keys with --keys")
        can_serve, clock = lambda: self.core.fleet.serving_count > 0, self.service.host.clock
        config = _within_file_limit(self._config.http)
        self.http = HttpDoor(
            self.gateway,
            self.authenticator,
            listening,
            can_serve,
            clock,
            config,
            tls,
            self._usage,
            self.gateway.metrics.count_refused_connection,
            BatchRoutes(self._batches.service, self.authenticator, config).routes(),
        )
        await self.http.start()

    def _usage(self, tenant: str) -> QuotaUsage:
        return self.core.quotas.usage(tenant, self.service.host.clock())

    def _make_core(self, address: Address) -> DispatcherCore:
        self.core = DispatcherCore(address, self._config)
        return self.core

    def _make_doors(self, host: CoreHost, model: ServedModel) -> Methods:
        metrics = DoorMetrics(self.authenticator.knows)
        metrics.registry.register(TenantWeightCollector(metrics.labelled_tenants, self.authenticator.weight_of))
        log = self._log
        if log is not None:
            metrics.registry.register(AccessLogCollector(lambda: (log.lines_total, log.dropped_total)))
        servers = {HTTP: f"{self._doors.http_host}:{self.http_port}", GRPC: self.service.endpoint}
        self.gateway = RequestGateway(host, model, metrics, log=log, servers=servers)
        self._host = host
        if self._quotas is not None:
            host.deliver(host.address, self._quotas)
        self._batches = self._make_batches(host)
        door = GrpcDoor(self.gateway, self.authenticator, lambda: self.core.directory.monitor_endpoint)
        return door.methods(GrpcBatches(self._batches.service, door).answers())

    def _make_batches(self, host: CoreHost) -> BatchJobs:
        config = self._config.batches
        return BatchJobs(
            self.service.options.name,
            JobStore(self.service.etcd),
            config.store_url or str(self.service.options.data_dir / "batches"),
            LineAnswerer(self.gateway, config.max_line_attempts, host.clock, config.urgent_share),
            config,
            host.clock,
        )

    def _tenant_error(self, tenant: Tenant) -> str:
        return str(objectives_error(tenant.objectives.ttft_s, tenant.objectives.tpot_s, self._config.objectives) or "")

    def _set_tenants(self, tenants: tuple[Tenant, ...]) -> None:
        self._quotas = self.authenticator.set_tenants(tenants)
        if self._host is not None:
            self._host.deliver(self._host.address, self._quotas)


def _within_file_limit(config: HttpConfig) -> HttpConfig:
    most = raise_open_file_limit(config.max_connections)
    if most < config.max_connections:
        text = "the limit of open files (ulimit -n) leaves room for %d HTTP connections, not for %d: raise it"
        _log.warning(text, most, config.max_connections)
    return replace(config, max_connections=most)


async def _load(doors: DoorOptions, data_dir: Path) -> ServedModel:
    try:
        wanted = doors.model, models_folder(data_dir), doors.model_name, doors.adapters
        return await asyncio.to_thread(load_served_model, *wanted)
    except ModelError as error:
        raise StartError(str(error)) from error
