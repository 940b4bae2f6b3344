"""What every service is around its core: a server, a registration, the membership, streams to its peers, and an end.

A server module names its conversations and gets a host:

    service = Service(options)
    await service.start(lambda address: XCore(address, config), accepts=[DISPATCH], dials={"kvstore": POOL})
    ...                                 # attach what only this service has to service.host
    return await service.run_until_stopped()

and its `main` hands that coroutine function to `run_service`. Knows no message of any conversation but membership.
"""

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import grpc

from dunlin.effects import Address, Core
from dunlin.membership.auth import EtcdUser
from dunlin.membership.client import EtcdClient
from dunlin.membership.errors import EtcdError
from dunlin.membership.members import MemberRecord, MemberWatch, register
from dunlin.membership.registration import Registration, RegistrationState
from dunlin.messages.group import DIALING
from dunlin.messages.membership import MemberMessage
from dunlin.runtime.core_host import CoreHost, wall_clock
from dunlin.wire.certificate_reloader import CertificateReloader
from dunlin.wire.channels import MESSAGE_LIMIT_BYTES
from dunlin.wire.envelopes import FLEET, StreamProtocol
from dunlin.wire.errors import StartError
from dunlin.wire.rpc.server import GrpcServer
from dunlin.wire.security import TlsIdentity
from dunlin.wire.service.decision_log import DecisionStreamer
from dunlin.wire.service.membership import MembershipWatch
from dunlin.wire.service.options import ServiceOptions
from dunlin.wire.streams.acceptor import StreamAcceptor
from dunlin.wire.streams.peer_dialer import PeerDialer
from dunlin.wire.streams.prober import LivenessProber, health_name
from dunlin.wire.streams.stream import StreamCounters

_log = logging.getLogger(__name__)

ETCD = Address("etcd", "")
_GRACE_S = 0.5

MakeCore = Callable[[Address], Core]
MakeHandlers = Callable[[CoreHost], Sequence[grpc.GenericRpcHandler]]


class ServiceProcess:
    """One service of the cluster in this process. `host` and `address` exist once `start` has returned."""

    host: CoreHost
    address: Address

    def __init__(self, options: ServiceOptions) -> None:
        self.options = options
        self.counters = StreamCounters()
        self.security: CertificateReloader | None = None
        self._etcd_security: CertificateReloader | None = None
        self.etcd: EtcdClient
        self.registration: Registration
        self.endpoint = ""
        self._server: GrpcServer
        self._dialing: PeerDialer
        self._pump: DecisionStreamer
        self._tasks: list[asyncio.Task[None]] = []
        self._stop = asyncio.Event()
        self._exit_code = 0
        self._left = False

    async def start(
        self,
        make_core: MakeCore,
        *,
        accepts: Iterable[StreamProtocol] = (),
        dials: Mapping[str, StreamProtocol] | None = None,
        same_node: Collection[str] = (),
        on_demand: Mapping[str, StreamProtocol] | None = None,
        make_handlers: MakeHandlers | None = None,
        services: Iterable[str] = (),
        extra: Mapping[str, str] | None = None,
        demands_certificate: bool = True,
        most_message_bytes: int = MESSAGE_LIMIT_BYTES,
    ) -> None:
        """Bind, register, make the core, answer, and follow the membership. Every service but a monitor dials monitors.

        Args:
            make_core: gets this process's address; called once, as soon as the incarnation is known.
            accepts: conversations in which others dial this service.
            dials: conversation per role that this service dials.
            same_node: the roles of `dials` that count only on this service's node.
            on_demand: conversation per role that this service dials when its core asks for it (`DialPeer`).
            make_handlers: further gRPC handlers (public or unary methods), made before the first call is answered; also
                the place to attach outlets that the core needs from its first message on.
            services: full names of their gRPC services, for health and reflection.
            extra: further doors for the member record, such as {"http": "host:port"}.
            demands_certificate: False for a door that knows its clients by something else; conversations are refused
                there. Without TLS it changes nothing.
            most_message_bytes: of one message that others send here.

        Raises:
            StartError: the port is taken, etcd cannot be reached or refuses, or the certificates are no good.
        """
        accepted = tuple(accepts)
        self.security = self._load_security()
        self._server = GrpcServer(self.options.listen, self._credentials(demands_certificate), most_message_bytes)
        self.endpoint = self.options.endpoint(self._server.port)
        self.address = await self._register(extra or {})
        self.host = CoreHost(make_core(self.address), self.address, wall_clock())
        self._dialing = self._dialer({**self._monitors(), **(dials or {})}, same_node, on_demand)
        acceptor = StreamAcceptor(
            self.host, accepted, self.counters, security=self.security, is_dialing=self._dialing.is_dialing
        )
        handlers = [acceptor, *(make_handlers(self.host) if make_handlers else ())]
        names = [*(f"dunlin.v1.{one.name}" for one in accepted), *services]
        await self._server.start(handlers, names, health_name(self.address))
        self._follow()
        _log.info("%s listens on %s", self.address, self.endpoint)

    async def run_until_stopped(self) -> int:
        """Serve until SIGTERM, SIGINT or `request_stop`, then `stop`. Returns the exit code."""
        await self.wait_for_stop()
        return await self.stop()

    async def wait_for_stop(self) -> None:
        """Return when the process is asked to end; for services with parts of their own to end first."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled, number)
        await self._stop.wait()

    def request_stop(self, exit_code: int = 0) -> None:
        """End `wait_for_stop`."""
        self._exit_code = exit_code
        self._stop.set()

    async def stop(self) -> int:
        """Leave the membership, send the last reasons, close every stream: within `stop_timeout_s`.

        Returns the exit code: 0, or what `request_stop` was given (1 when another process took this one's name).
        """
        if self._left:
            return self._exit_code
        self._left = True
        try:
            async with asyncio.timeout(self.options.stop_timeout_s):
                await self._leave()
        except TimeoutError:
            _log.warning("%s did not stop in %.1f s; leaving the rest", self.address, self.options.stop_timeout_s)
        return self._exit_code

    def _load_security(self) -> CertificateReloader | None:
        options, directory = self.options, self.options.tls_dir
        if directory is None:
            return None
        return CertificateReloader(lambda: TlsIdentity.load_for(directory, options.role, options.name))

    def _credentials(self, demands_certificate: bool) -> grpc.ServerCredentials | None:
        if self.security is None:
            return None
        return self.security.server_credentials(demands_certificate=demands_certificate)

    def _etcd_credentials(self) -> Callable[[], grpc.ChannelCredentials] | None:
        directory = self.options.etcd_tls_dir
        if directory is not None:
            self._etcd_security = CertificateReloader(lambda: TlsIdentity.load(directory))
        security = self._etcd_security or self.security
        return security.channel_credentials if security is not None else None

    async def _register(self, extra: Mapping[str, str]) -> Address:
        options = self.options
        try:
            record = MemberRecord(options.role, options.name, options.node, self.endpoint, os.getpid(), extra=extra)
            user = EtcdUser(options.etcd_user, options.etcd_password)
            self.etcd = EtcdClient(options.etcd, credentials=self._etcd_credentials(), user=user)
        except ValueError as error:
            raise StartError(str(error)) from error
        self.registration = register(self.etcd, record, ttl_s=options.lease_ttl_s, on_state=self._registration_changed)
        try:
            incarnation = await self.registration.start(options.start_timeout_s)
        except EtcdError as error:
            await self.etcd.close()
            raise StartError(f"no membership without etcd (--etcd {','.join(options.etcd)}): {error}") from error
        return Address(options.role, options.name, incarnation)

    def _registration_changed(self, state: RegistrationState, why: str) -> None:
        if state is RegistrationState.SUPERSEDED:
            _log.error("%s ends: %s; give each process its own --name", self.address, why)
            self.request_stop(exit_code=1)

    def _monitors(self) -> dict[str, StreamProtocol]:
        return {} if self.options.role == "monitor" else {"monitor": FLEET}

    def _dialer(
        self,
        dials: Mapping[str, StreamProtocol],
        same_node: Collection[str],
        on_demand: Mapping[str, StreamProtocol] | None,
    ) -> PeerDialer:
        dialer = PeerDialer(
            self.host,
            dials,
            node=self.options.node,
            same_node=same_node,
            counters=self.counters,
            security=self.security,
            on_demand=on_demand,
        )
        if on_demand:
            self.host.attach(DIALING, dialer)
        return dialer

    def _follow(self) -> None:
        self._pump = DecisionStreamer(self.host)
        prober = LivenessProber(self._is_connected, self.security)
        membership = MembershipWatch(
            MemberWatch(self.etcd), prober, self._tell, self.host.clock, self.host.crash_on_error
        )
        work = {"membership": membership.run(), "reasons": self._pump.run()}
        for name, security in (("certificates", self.security), ("certificates for etcd", self._etcd_security)):
            if security is not None:
                work[name] = security.watch()
        for name, running in work.items():
            task = asyncio.create_task(running, name=name)
            task.add_done_callback(self.host.crash_on_error)
            self._tasks.append(task)

    def _is_connected(self, address: Address) -> bool:
        return address == self.address or address in self.host.peers(address.role)

    def _tell(self, message: MemberMessage) -> None:
        # The core first: it should know a member before its stream joins.
        self.host.deliver(ETCD, message)
        self._dialing.apply(message)

    def _signalled(self, number: int) -> None:
        _log.info("%s: %s", self.address, signal.Signals(number).name)
        self.request_stop()

    async def _leave(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._pump.flush()
        await self._server.set_not_serving()  # before the registration ends, so that no probe finds us alive
        # A moment for the last frames, while etcd forgets this process.
        await asyncio.gather(self.registration.stop(), asyncio.sleep(0.05))
        self.host.close()
        await self._dialing.stop()
        await self._server.stop(_GRACE_S)
        await self.etcd.close()
