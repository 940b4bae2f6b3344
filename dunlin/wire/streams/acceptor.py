"""The answering side of conversations: a gRPC handler that turns each `Attach` call into a peer of the host."""

import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from dunlin.effects import Address
from dunlin.runtime.core_host import CoreHost
from dunlin.wire.envelopes import StreamProtocol
from dunlin.wire.security import IdentitySource, is_certificate_of, peer_certificate_names
from dunlin.wire.streams.stream import PeerStream, StreamCounters, StreamLimits, identity_metadata, read_identities

if TYPE_CHECKING:  # generic for the type checker alone
    Context = grpc.aio.ServicerContext[Any, Any]
    Handler = grpc.RpcMethodHandler[Any, Any]


_log = logging.getLogger(__name__)


class StreamAcceptor(grpc.GenericRpcHandler):
    """Accepts streams of `conversations` that are addressed to this very incarnation.

    Of two processes that dial each other at once, for which both ask `is_dialing`, the one with the lower address
    refuses. Else each may take the other's stream in the place of its own, and both streams end.
    """

    def __init__(
        self,
        host: CoreHost,
        conversations: Iterable[StreamProtocol],
        counters: StreamCounters | None = None,
        limits: StreamLimits | None = None,
        security: IdentitySource | None = None,
        is_dialing: Callable[[Address], bool] = lambda peer: False,
    ) -> None:
        self.counters = counters or StreamCounters()
        self._security = security
        self._is_dialing = is_dialing
        self._refused_last = ""
        self._host = host
        self._limits = limits or StreamLimits()
        self._handlers: dict[str, Handler] = {
            conversation.method: grpc.stream_stream_rpc_method_handler(self._attach(conversation))
            for conversation in conversations
        }

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> "Handler | None":
        """The handler of a method, for gRPC; None: this object does not handle it."""
        return self._handlers.get(handler_call_details.method)

    def _attach(self, conversation: StreamProtocol) -> "Callable[[object, Context], Awaitable[None]]":
        async def attach(_: object, context: "Context") -> None:
            peer = await self._caller(context, conversation)
            await context.send_initial_metadata(identity_metadata(self._host.address, peer))
            stream = PeerStream(self._host, peer, conversation.event, conversation.command, self._limits, self.counters)
            end = await stream.run(context)
            if end.code is not grpc.StatusCode.OK:
                await context.abort(end.code, end.reason)

        return attach

    async def _caller(self, context: "Context", conversation: StreamProtocol) -> Address:
        try:
            caller, meant = read_identities(context.invocation_metadata())
        except ValueError as error:
            self.counters.misdirected += 1
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, str(error))
        if meant != self._host.address:
            self.counters.misdirected += 1
            text = f"this is {self._host.address}, not {meant}"
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, text)
        if caller.incarnation <= 0 or caller == meant:
            # Incarnation 0 is for addresses inside this process (its engine, etcd, clients): no peer may use them.
            self.counters.misdirected += 1
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, f"{caller} is not the address of another process")
        refusal = self._refusal(context, caller, conversation)
        if refusal:
            self.counters.refused += 1
            level = logging.DEBUG if refusal == self._refused_last else logging.WARNING  # it may dial for ever
            self._refused_last = refusal
            _log.log(level, "refused %s from %s: %s", conversation.name, context.peer(), refusal)
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, refusal)
        if meant < caller and self._is_dialing(caller):
            await context.abort(grpc.StatusCode.ABORTED, f"{meant} dials {caller} itself at this moment")
        return caller

    def _refusal(self, context: "Context", caller: Address, conversation: StreamProtocol) -> str:
        """Why this caller may not open this conversation; empty: it may."""
        if caller.role not in conversation.callers:
            return f"a {caller.role} does not dial {conversation.name}: only {', '.join(conversation.callers)}"
        if self._security is None:
            return ""
        names = peer_certificate_names(context)
        if is_certificate_of(names, caller.role, caller.name):
            return ""
        shown = f"the certificate of {', '.join(names)}" if names else "no certificate with a name"
        return f"{caller} shows {shown}"
