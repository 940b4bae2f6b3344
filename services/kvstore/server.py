"""Runs one node's kvstore: its shared memory, its process watcher and its streams around `KvstoreCore`."""

from collections.abc import Sequence
from dataclasses import replace

import grpc

from dunlin.runtime.core_host import CoreHost
from dunlin.transport.one_sided.agent import Agent, AgentError
from dunlin.wire.envelopes import EXCHANGE, POOL
from dunlin.wire.errors import StartError
from dunlin.wire.service.options import ServiceOptions
from dunlin.wire.service.service import ServiceProcess
from services.kvstore.config import KvstoreConfig
from services.kvstore.core import KvstoreCore
from services.kvstore.regions.writer_absences import PROCESSES
from services.kvstore.server_host_memory import HostMemoryError, SharedHostMemory
from services.kvstore.server_processes import ProcessWatcher
from services.kvstore.server_transport import RegionTransport, choose_agent
from services.kvstore.transfer.transport_commands import TRANSPORT


async def serve(options: ServiceOptions, config: KvstoreConfig) -> int:
    """Serve until told to stop; returns the exit code.

    Args:
        options: where to run.
        config: everything but `tier_path`, `node` and `agent`, which are known only here.

    Raises:
        StartError: no memory for the tier, no NIXL where it is asked for, port taken, no etcd.
    """
    try:
        tier = SharedHostMemory(config.tier.capacity_bytes)
    except HostMemoryError as error:
        raise StartError(str(error)) from error
    service = ServiceProcess(options)
    try:
        agent = _agent(options, config)
        about = agent.descriptor if agent is not None else None
        config = replace(config, tier_path=tier.path, node=options.node, agent=about)
        await service.start(
            lambda address: KvstoreCore(address, config),
            accepts=[POOL, EXCHANGE],
            on_demand={"kvstore": EXCHANGE},
            make_handlers=lambda host: _attach(host, service, tier, agent, config.exchange.transport),
        )
        return await service.run_until_stopped()
    finally:
        tier.close()


def _agent(options: ServiceOptions, config: KvstoreConfig) -> Agent | None:
    try:
        return choose_agent(config.exchange.transport, options.name, is_secured=options.tls_dir is not None)
    except AgentError as error:
        raise StartError(f"--transport {config.exchange.transport}: {error}") from error


def _attach(
    host: CoreHost, service: ServiceProcess, tier: SharedHostMemory, agent: Agent | None, transport: str
) -> Sequence[grpc.GenericRpcHandler]:
    """What the core needs from its first message on."""
    options = service.options
    host.attach(PROCESSES, ProcessWatcher(host))
    listen = options.listen.rpartition(":")[0].strip("[]") or "127.0.0.1"
    carrier = RegionTransport(
        host, tier.view(), listen, options.endpoint, service.security, agent, may_shun=transport == "auto"
    )
    host.attach(TRANSPORT, carrier)
    return ()
