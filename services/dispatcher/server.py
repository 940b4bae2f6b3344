"""Runs a dispatcher: the core in its service, the doors before it. Translates and decides nothing."""

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path

from dunlin.effects import Address
from dunlin.engine.errors import ModelError
from dunlin.host import Host
from dunlin.wire.envelopes import DISPATCH
from dunlin.wire.methods import DISPATCHER_SERVICE, Methods
from dunlin.wire.options import ServiceOptions, StartError
from dunlin.wire.service import Service
from services.dispatcher.config import DispatcherConfig
from services.dispatcher.core import DispatcherCore
from services.dispatcher.door import Door
from services.dispatcher.http import HttpDoor, bind
from services.dispatcher.metrics import Metrics
from services.dispatcher.model import Model, load_model
from services.dispatcher.server_public import PublicDoor


@dataclass(frozen=True, slots=True)
class DoorOptions:
    """What is served and where HTTP listens; port 0: any."""

    model: str
    http_host: str
    http_port: int
    model_name: str = ""


class Dispatcher:
    """One dispatcher process. Parts exist once `start` has returned."""

    core: DispatcherCore
    door: Door
    http: HttpDoor

    def __init__(self, options: ServiceOptions, doors: DoorOptions, config: DispatcherConfig) -> None:
        self.service = Service(options)
        self.http_port = 0
        self._doors = doors
        self._config = config

    async def start(self) -> None:
        """Load the tokenizer, bind, register, open the doors.

        Raises:
            StartError: what is wrong and what to do.
        """
        model = await _load(self._doors, self.service.options.data_dir)
        self._config = replace(self._config, max_positions=model.max_positions)
        listening = bind(self._doors.http_host, self._doors.http_port)
        self.http_port = listening.getsockname()[1]
        await self.service.start(
            self._make_core,
            dials={"instance": DISPATCH},
            make_handlers=lambda host: [self._open(host, model)],
            services=[DISPATCHER_SERVICE],
            extra={"http": f"{self._doors.http_host}:{self.http_port}"},
        )
        host = self.service.host
        security = self.service.security
        # Browsers and OpenAI's clients have no certificates: here it is the server that proves itself.
        tls = security.server_context(demands_certificate=False) if security is not None else None
        self.http = HttpDoor(self.door, listening, lambda: bool(self.core.fleet.placeable), host.clock, tls=tls)
        await self.http.start()

    async def run(self) -> int:
        """Serve until told to stop; the exit code."""
        await self.start()
        await self.service.wait_for_stop()
        self.door.shut()
        await self.http.stop()
        return await self.service.run_until_stopped()

    def _make_core(self, address: Address) -> DispatcherCore:
        self.core = DispatcherCore(address, self._config)
        return self.core

    def _open(self, host: Host, model: Model) -> Methods:
        self.door = Door(host, model, Metrics(self.core.report))
        return PublicDoor(self.door, lambda: self.core.directory.monitor_endpoint).methods()


async def _load(doors: DoorOptions, data_dir: Path) -> Model:
    try:
        return await asyncio.to_thread(load_model, doors.model, data_dir / "models", doors.model_name)
    except ModelError as error:
        raise StartError(str(error)) from error
