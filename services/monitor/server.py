"""Runs a monitor: streams of reports, the tools' questions and the page of metrics around `MonitorCore`."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import grpc

from dunlin.messages.fleet import EXPLAIN, MONITOR_SERVICE, STATUS
from dunlin.runtime.core_host import CoreHost
from dunlin.wire import codec
from dunlin.wire.envelopes import FLEET
from dunlin.wire.rpc.methods import Methods
from dunlin.wire.service.options import ServiceOptions
from dunlin.wire.service.service import ServiceProcess
from services.monitor.config import MonitorConfig
from services.monitor.core import TRACES, MonitorCore
from services.monitor.server_metrics import MetricsServer
from services.monitor.server_queries import QueryServicer
from services.monitor.server_traces import open_traces


async def serve(options: ServiceOptions, config: MonitorConfig, metrics: str = "", otlp: str = "") -> int:
    """Serve until told to stop; returns the exit code.

    Args:
        options: where to run.
        config: the core's settings.
        metrics: `host:port` of the page of metrics; empty for none.
        otlp: endpoint of an OpenTelemetry collector; empty for none.

    Raises:
        StartError: a port is taken, no etcd, or `otlp` is wanted and cannot be.
    """
    service = ServiceProcess(options)
    traces = open_traces(otlp, options.node) if otlp else None
    pump: asyncio.Task[None] | None = None
    door = await MetricsServer.open(metrics) if metrics else None
    try:
        await service.start(
            lambda address: MonitorCore(address, replace(config, traces=bool(otlp)), codec),
            accepts=[FLEET],
            make_handlers=_handlers,
            services=[MONITOR_SERVICE],
            extra={"metrics": options.endpoint(door.port)} if door else None,
        )
        if traces:
            service.host.attach(TRACES, traces)
            pump = asyncio.create_task(traces.run(service.host.clock))
            pump.add_done_callback(service.host.crash_on_error)
        if door:
            door.set_source(QueryServicer(service.host).fleet_status, traces.families if traces else tuple)
        return await service.run_until_stopped()
    finally:
        if pump:
            pump.cancel()
        if door:
            await door.close()


def _handlers(host: CoreHost) -> Sequence[grpc.GenericRpcHandler]:
    desk = QueryServicer(host)
    return [Methods({EXPLAIN: desk.explain, STATUS: desk.status})]
