"""Runs a monitor: streams of reports, the tools' questions and the page of metrics around `MonitorCore`."""

from collections.abc import Sequence

import grpc

from dunlin.host import Host
from dunlin.wire import codec
from dunlin.wire.envelopes import FLEET
from dunlin.wire.methods import EXPLAIN, MONITOR_SERVICE, STATUS, Methods
from dunlin.wire.options import ServiceOptions
from dunlin.wire.service import Service
from services.monitor.config import MonitorConfig
from services.monitor.core import MonitorCore
from services.monitor.server_desk import Desk
from services.monitor.server_metrics import MetricsDoor


async def serve(options: ServiceOptions, config: MonitorConfig, metrics: str = "") -> int:
    """Serve until told to stop; returns the exit code.

    Args:
        options: where to run.
        config: the core's settings.
        metrics: `host:port` of the page of metrics; empty for none.

    Raises:
        StartError: a port is taken, or no etcd.
    """
    service = Service(options)
    door = await MetricsDoor.open(metrics) if metrics else None
    try:
        await service.start(
            lambda address: MonitorCore(address, config, codec),
            accepts=[FLEET],
            make_handlers=_handlers,
            services=[MONITOR_SERVICE],
            extra={"metrics": options.endpoint(door.port)} if door else None,
        )
        if door:
            door.answer_from(Desk(service.host).now)
        return await service.run_until_stopped()
    finally:
        if door:
            await door.close()


def _handlers(host: Host) -> Sequence[grpc.GenericRpcHandler]:
    desk = Desk(host)
    return [Methods({EXPLAIN: desk.explain, STATUS: desk.status})]
