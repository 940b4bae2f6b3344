"""Runs one node's kvstore: its shared memory, its process watcher and its streams around `KvstoreCore`."""

from collections.abc import Sequence
from dataclasses import replace

import grpc

from dunlin.host import Host
from dunlin.transport.agent import Agent, AgentError
from dunlin.wire.envelopes import EXCHANGE, POOL
from dunlin.wire.errors import StartError
from dunlin.wire.options import ServiceOptions
from dunlin.wire.service import Service
from services.kvstore.carriage import TRANSPORT
from services.kvstore.config import KvstoreConfig
from services.kvstore.core import KvstoreCore
from services.kvstore.orphans import PROCESSES
from services.kvstore.server_processes import ProcessWatcher
from services.kvstore.server_tier import HostTier, TierError
from services.kvstore.server_transport import Carrier, choose_agent


async def serve(options: ServiceOptions, config: KvstoreConfig) -> int:
    """Serve until told to stop; returns the exit code.

    Args:
        options: where to run.
        config: everything but `tier_path`, `node` and `agent`, which are known only here.

    Raises:
        StartError: no memory for the tier, no NIXL where it is asked for, port taken, no etcd.
    """
    try:
        tier = HostTier(config.tier.capacity_bytes)
    except TierError as error:
        raise StartError(str(error)) from error
    service = Service(options)
    try:
        agent = _agent(options, config)
        about = agent.about if agent is not None else None
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
    host: Host, service: Service, tier: HostTier, agent: Agent | None, transport: str
) -> Sequence[grpc.GenericRpcHandler]:
    """What the core needs from its first message on."""
    options = service.options
    host.attach(PROCESSES, ProcessWatcher(host))
    listen = options.listen.rpartition(":")[0].strip("[]") or "127.0.0.1"
    carrier = Carrier(
        host, tier.view(), listen, options.endpoint, service.security, agent, may_shun=transport == "auto"
    )
    host.attach(TRANSPORT, carrier)
    return ()
