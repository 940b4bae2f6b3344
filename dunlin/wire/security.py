"""TLS between processes: the files of one process, and what a certificate says of its holder.

Connections are mutual: both sides show a certificate of the cluster's own CA. A dialer asks for a name that only the
wanted process's certificate carries (`server_name`), so the handshake itself refuses another role; an acceptor compares
the caller's certificate with the address that the caller claims (`is_certificate_of`). Knows no conversation and no
service; making certificates is `dunlin/auth/certificates.py`.
"""

import ssl
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any, Protocol

import grpc

from dunlin.auth.certificates import ANY_NAME, CA, CERTIFICATE, KEY, CertificateError, identity_names
from dunlin.wire.errors import StartError

_NOBODY = "nobody.dunlin"
_ROUND_TRIPS = 4


class IdentitySource(Protocol):
    """Knows the certificates to use for a connection that begins now: `CertificateReloader`, or a fixed identity."""

    def current(self) -> "TlsIdentity":
        """The same object until the certificates change."""
        ...


@dataclass(frozen=True, slots=True)
class TlsIdentity:
    """The certificates in `directory`: `ca.pem`, `cert.pem` and `key.pem`, checked. Its texts are PEM.

    A client that authenticates itself in another way may have only `ca.pem`: then `certificate` and `key` are empty.
    `names` are the DNS names in the certificate; it holds from `begins_s` to `ends_s` (seconds since 1970).
    """

    directory: Path
    ca: bytes
    certificate: bytes = b""
    key: bytes = b""
    names: tuple[str, ...] = ()
    begins_s: float = 0.0
    ends_s: float = inf

    @staticmethod
    def load(directory: Path) -> "TlsIdentity":
        """Read and check the files, as a client.

        Raises:
            StartError: a file is missing, unreadable or broken, the key is another certificate's, or the certificate is
                another CA's or not valid today; the text names the file.
        """
        ca = _read(directory / CA)
        if not (directory / CERTIFICATE).exists() and not (directory / KEY).exists():
            bare = TlsIdentity(directory, ca)
            bare.client_context()
            return bare
        certificate, key = _read(directory / CERTIFICATE), _read(directory / KEY)
        whole = TlsIdentity(directory, ca, certificate, key)
        seen = _tried(whole)
        begins_s, ends_s = (ssl.cert_time_to_seconds(seen[key]) for key in ("notBefore", "notAfter"))
        return replace(whole, names=certificate_names(seen), begins_s=begins_s, ends_s=ends_s)

    @staticmethod
    def load_for(directory: Path, role: str, name: str) -> "TlsIdentity":
        """`load`, as the process `name` of `role`: its certificate must say so.

        Raises:
            StartError: like `load`; or the certificate is for another role or name.
        """
        security = TlsIdentity.load(directory)
        if not is_certificate_of(security.names, role, name):
            path, found = directory / CERTIFICATE, ", ".join(security.names) or "no certificate"
            text = f"{path} is not for the {role} {name!r} (it names {found}); issue one:"
            raise StartError(f"{text} dunlin certs issue CA_DIR --role {role} --name {name} --host HOST")
        return security

    def current(self) -> "TlsIdentity":
        """Itself: an `IdentitySource` that never changes."""
        return self

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """For the side that dials."""
        return grpc.ssl_channel_credentials(self.ca, self.key or None, self.certificate or None)

    def server_credentials(self, *, demands_certificate: bool = True) -> grpc.ServerCredentials:
        """For the side that answers."""
        ca = self.ca if demands_certificate else None
        return grpc.ssl_server_credentials([(self.key, self.certificate)], ca, demands_certificate)

    def server_configuration(self, *, demands_certificate: bool = True) -> grpc.ServerCertificateConfiguration:
        """For a server of `grpc.dynamic_ssl_server_credentials`."""
        ca = self.ca if demands_certificate else None
        return grpc.ssl_server_certificate_configuration([(self.key, self.certificate)], ca)

    def client_context(self) -> ssl.SSLContext:
        """For plain sockets: dial with `server_hostname=server_name(role, name)`.

        Raises:
            StartError: the files cannot be used.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._fill(context)
        return context

    def server_context(self, *, demands_certificate: bool = True) -> ssl.SSLContext:
        """For plain sockets and HTTP: the side that answers. Then check `certificate_names(socket.getpeercert())`.

        Raises:
            StartError: the files cannot be used.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._fill(context)
        context.verify_mode = ssl.CERT_REQUIRED if demands_certificate else ssl.CERT_NONE
        return context

    def _fill(self, context: ssl.SSLContext) -> None:
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_verify_locations(cadata=self.ca.decode("ascii"))
        except (ssl.SSLError, ValueError) as error:
            raise StartError(f"{self.directory / CA} is not a certificate in PEM form: {error}") from error
        if not self.certificate:
            return
        try:
            context.load_cert_chain(self.directory / CERTIFICATE, self.directory / KEY)
        except (ssl.SSLError, OSError) as error:
            both = f"{self.directory / CERTIFICATE} and {self.directory / KEY}"
            raise StartError(f"{both} are not a certificate and its key in PEM form: {error}") from error


def server_name(role: str, name: str = "") -> str:
    """The name that the certificate of process `name` of `role` carries; no name: that of any process of the role."""
    try:
        of_role, of_name = identity_names(role, name or ANY_NAME)
    except CertificateError:
        return _NOBODY  # no certificate can carry it, so no process passes for it
    return of_name if name else of_role


def is_certificate_of(names: Collection[str], role: str, name: str) -> bool:
    """Whether a certificate with these DNS names is that of process `name` of `role`."""
    try:
        accepted = (identity_names(role, name)[1], identity_names(role, ANY_NAME)[1])
    except CertificateError:
        return False
    return name != ANY_NAME and any(one in accepted for one in names)


def has_role(names: Collection[str], roles: Collection[str]) -> bool:
    """Whether a certificate with these DNS names is of one of `roles`."""
    return any(server_name(role) in names for role in roles)


def certificate_names(certificate: Mapping[str, Any] | None) -> tuple[str, ...]:
    """The DNS names in what `SSLSocket.getpeercert()` returns."""
    return tuple(value for kind, value in (certificate or {}).get("subjectAltName", ()) if kind == "DNS")


def peer_certificate_names(context: Any) -> tuple[str, ...]:
    """The DNS names in the certificate of a gRPC call's peer; none: it showed no certificate."""
    return tuple(name.decode("ascii", "replace") for name in context.auth_context().get("peer_dns", ()))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        text = "needs ca.pem, cert.pem and key.pem, as `dunlin certs issue` writes them"
        raise StartError(f"cannot read {path}: {error.strerror or error}; the directory {text}") from error


def _tried(security: TlsIdentity) -> dict[str, Any]:
    """Shake hands with oneself: what a peer would refuse shows here, with its reason. Returns what a peer sees."""
    server, client = security.server_context(), security.client_context()
    client.check_hostname = False
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    answering = server.wrap_bio(up, down, server_side=True)
    ends = (client.wrap_bio(down, up), answering)
    try:
        for end in ends * _ROUND_TRIPS:
            _step(end)
    except ssl.SSLError as error:
        why = getattr(error, "verify_message", "") or error
        path = security.directory / CERTIFICATE
        raise StartError(f"{path} does not hold against {security.directory / CA}: {why}") from error
    return answering.getpeercert() or {}


def _step(end: ssl.SSLObject) -> None:
    try:
        end.do_handshake()
    except ssl.SSLWantReadError:
        pass
