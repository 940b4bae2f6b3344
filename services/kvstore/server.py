"""Runs one node's kvstore: its shared memory, its process watcher and its streams around `KvstoreCore`."""

from collections.abc import Sequence
from dataclasses import replace

import grpc

from dunlin.host import Host
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
from services.kvstore.server_transport import Carrier


async def serve(options: ServiceOptions, config: KvstoreConfig) -> int:
    """Serve until told to stop; returns the exit code.

    Args:
        options: where to run.
        config: everything but `tier_path` and `node`, which are known only here.

    Raises:
        StartError: no memory for the tier, port taken, no etcd.
    """
    try:
        tier = HostTier(config.tier_bytes)
    except TierError as error:
        raise StartError(str(error)) from error
    config = replace(config, tier_path=tier.path, node=options.node)
    service = Service(options)
    try:
        await service.start(
            lambda address: KvstoreCore(address, config),
            accepts=[POOL, EXCHANGE],
            on_demand={"kvstore": EXCHANGE},
            make_handlers=lambda host: _attach(host, service, tier),
        )
        return await service.run_until_stopped()
    finally:
        tier.close()


def _attach(host: Host, service: Service, tier: HostTier) -> Sequence[grpc.GenericRpcHandler]:
    """What the core needs from its first message on."""
    options = service.options
    host.attach(PROCESSES, ProcessWatcher(host))
    listen = options.listen.rpartition(":")[0].strip("[]") or "127.0.0.1"
    host.attach(TRANSPORT, Carrier(host, tier.view(), listen, options.endpoint, service.security))
    return ()
