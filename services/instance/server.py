"""Runs an instance: its engine's process and its streams around `InstanceCore`."""

import asyncio
import logging
from collections.abc import Sequence

import grpc

from dunlin.model.config import load_config
from dunlin.model.errors import ModelError
from dunlin.runtime.core_host import CoreHost
from dunlin.runtime.fork_server.client import ForkServer
from dunlin.wire.envelopes import DISPATCH, GROUP, PLAN, POOL
from dunlin.wire.errors import StartError
from dunlin.wire.service.options import ServiceOptions
from dunlin.wire.service.service import ServiceProcess
from services.instance.config import InstanceConfig
from services.instance.core import InstanceCore
from services.instance.scheduling.step_times import PROFILES, KnownStepTimes
from services.instance.server_engine_supervisor import EngineLaunchSettings, EngineProcessSupervisor
from services.instance.server_learnt_steps import LearntStepsWriter, Save

_log = logging.getLogger(__name__)


async def serve(
    options: ServiceOptions,
    config: InstanceConfig,
    settings: EngineLaunchSettings,
    forks: ForkServer,
    known: KnownStepTimes,
    save: Save,
) -> int:
    """Serve until told to stop; returns the exit code.

    Args:
        options: where to run.
        config: of the core.
        settings: of the engine's processes.
        forks: starts them.
        known: what is known of the times of its steps.
        save: keeps what is learnt of them.

    Raises:
        StartError: the model cannot be served, the port is taken, or no etcd.
    """
    try:
        load_config(settings.model)
    except ModelError as error:
        raise StartError(str(error)) from error
    service = ServiceProcess(options)
    failures: list[str] = []

    def cannot_start(reason: str) -> None:
        failures.append(reason)
        service.request_stop(exit_code=2)

    await service.start(
        lambda address: InstanceCore(address, config, known),
        accepts=[DISPATCH, PLAN, GROUP],
        dials={"kvstore": POOL},
        same_node=["kvstore"],
        on_demand={"instance": GROUP},
        make_handlers=lambda host: _attach(host, save),
    )
    keeper = EngineProcessSupervisor(service.host, settings, forks, cannot_start)
    tasks = [asyncio.create_task(keeper.run()), asyncio.create_task(keeper.report_progress())]
    for task in tasks:
        task.add_done_callback(service.host.crash_on_error)
    await service.wait_for_stop()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    keeper.close()
    forks.close()
    exit_code = await service.stop()
    if failures:
        raise StartError(failures[0])
    return exit_code


def _attach(host: CoreHost, save: Save) -> Sequence[grpc.GenericRpcHandler]:
    """What the core needs from its first message on."""
    host.attach(PROFILES, LearntStepsWriter(save))
    return ()
